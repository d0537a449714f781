//! Micro-kernel of products with bfloat16 operands for AMX: 2 x 2 tile registers hold 32 x 32 sums
//! in float32, and `tdpbf16ps` adds the products of 32 elements along `k` to one of them.
//!
//! A panel is a sequence of tiles of 16 lines, each read by one `tileloadd`. A tile takes 32
//! elements along `k`, which are 16 of [`MicroKernel::steps`]. Tiles of rows have a line of 32
//! elements for each row, those of columns a line for each pair of elements along `k`, with 16
//! columns.

use std::arch::asm;
use std::arch::x86_64::{__m512i, _MM_HINT_T0, _mm_prefetch, _mm512_setzero_si512};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;

use half::bf16;

use super::kernel::{COLUMNS, LANES, Left, Line, MicroKernel, Terms};
use super::vectors::{first, narrow_along, pairs, store_tile, transpose};
use crate::cpu::element::Element;
use crate::cpu::matrix::{Matrix, MatrixMut};

/// Lines of a tile register, and values of 32 bits in a line.
const SIDE: usize = LANES;
/// Elements along `k` of a tile register.
const ELEMENTS: usize = 2 * SIDE;
/// Values of 32 bits in a tile register.
const VALUES: usize = SIDE * SIDE;

/// True if the processor has AMX for bfloat16, and the kernel lets this process use its registers.
pub fn is_usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| {
        let leaf = |leaf| std::arch::x86_64::__cpuid_count(leaf, 0);
        // CPUID.7.0: EDX bits 22 (AMX-BF16) and 24 (AMX-TILE).
        let bits = 1 << 22 | 1 << 24;
        leaf(0).eax >= 7 && leaf(7).edx & bits == bits && is_permitted()
    })
}

/// Asks Linux for tile registers, which a process may use only after that
/// (`Documentation/arch/x86/xstate.rst`).
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two integers and changes the permissions of this process alone.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Operand of `ldtilecfg`: eight registers of 16 lines of 64 bytes.
#[repr(C, align(64))]
struct Configuration([u8; 64]);

static CONFIGURATION: Configuration = {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut register = 0;
    while register < 8 {
        bytes[16 + 2 * register] = 64;
        bytes[48 + register] = SIDE as u8;
        register += 1;
    }
    Configuration(bytes)
};

/// The tile registers of a thread: configured when made, released when dropped.
pub struct Amx(PhantomData<*const ()>);

impl Drop for Amx {
    fn drop(&mut self) {
        // SAFETY: no value of this thread is in a tile register any more.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

impl MicroKernel for Amx {
    const ROWS: usize = 2 * SIDE;
    const LONGEST: usize = 2048;
    const UNIT: usize = ELEMENTS;
    /// A megabyte.
    const GROUP: usize = 1 << 18;

    fn steps(len: usize) -> usize {
        len.div_ceil(ELEMENTS) * SIDE
    }

    fn stored_rows(rows: usize) -> usize {
        rows.next_multiple_of(SIDE)
    }

    unsafe fn pack_rows<E: Element>(panel: &mut [u32], rows: Matrix<'_, E>) {
        let tiles = rows.rows().div_ceil(SIDE);
        assert_eq!(panel.len(), tiles * SIDE * Self::steps(rows.cols()), "a panel fits its rows");
        // SAFETY: the panel has room, the matrix was checked against its slice, and the caller
        // promises the machine.
        unsafe { pack::<E, true>(panel.as_mut_ptr(), tiles, rows) };
    }

    unsafe fn pack_columns<E: Element>(panel: &mut [u32], columns: Matrix<'_, E>) {
        assert_eq!(panel.len(), COLUMNS * Self::steps(columns.rows()), "a panel fits its columns");
        // SAFETY: as above.
        unsafe { pack::<E, false>(panel.as_mut_ptr(), 2, columns.t()) };
    }

    unsafe fn start() -> Self {
        // SAFETY: the caller promises the machine; only this type uses tile registers.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION, options(nostack, readonly, preserves_flags));
        }
        Self(PhantomData)
    }

    fn reads_in_place(a: Matrix<'_, bf16>) -> bool {
        a.strides()[1] == 1 && a.cols().is_multiple_of(ELEMENTS)
    }

    unsafe fn tiles<O: Element>(
        &self,
        out: &MatrixMut<'_, O>,
        [rows, columns]: [Range<usize>; 2],
        left: Left<'_>,
        next: Option<Left<'_>>,
        right: &[u32],
        terms: Terms<'_>,
    ) {
        let panels = columns.len().div_ceil(COLUMNS);
        let of_panel = right.len() / panels.max(1);
        let count = of_panel / (2 * VALUES);
        let fits = match left {
            Left::Panel(panel) => panel.len() == Self::stored_rows(rows.len()) * SIDE * count,
            Left::Rows(a) => {
                rows.len() == Self::ROWS
                    && a.rows() == Self::ROWS
                    && a.cols() == count * ELEMENTS
                    && Self::reads_in_place(a)
            }
        };
        assert!(fits && rows.len() <= Self::ROWS && right.len() == panels * count * 2 * VALUES, "panels of tiles");
        assert!(rows.end <= out.rows() && columns.end <= out.cols(), "tiles lie inside the product");
        let left = Lines::new(left, rows.len());
        let next = next.map_or(left, |next| Lines::new(next, Self::ROWS));
        let mut sums = MaybeUninit::<[[Line; 4 * SIDE]; 2]>::uninit();
        let sums = sums.as_mut_ptr().cast::<[Line; 4 * SIDE]>();
        let mut earlier = None;
        for (i, column) in columns.clone().step_by(COLUMNS).enumerate() {
            // SAFETY: the operands have these sizes, and the sums that are read have been written.
            unsafe {
                let own = sums.add(i % 2).cast();
                multiply(own, left, right.as_ptr().add(i * of_panel), count, rows.len() > SIDE, next.part(i, count));
                // The tile before is stored while registers multiply.
                let tile = [rows.clone(), column..columns.end.min(column + COLUMNS)];
                if let Some((tile, sums)) = earlier.replace((tile, own)) {
                    store_tile(out, tile, sums, terms);
                }
            }
        }
        if let Some((tile, sums)) = earlier {
            // SAFETY: as above.
            unsafe { store_tile(out, tile, sums, terms) };
        }
    }
}

/// Addresses of rows, in bytes.
#[derive(Clone, Copy)]
struct Lines {
    start: *const u8,
    /// From one row to the next.
    line: usize,
    /// From the first 16 rows to the others.
    tile: usize,
    /// From one step to the next.
    step: usize,
}

impl Lines {
    fn new(left: Left<'_>, rows: usize) -> Self {
        match left {
            Left::Panel(panel) => {
                let tile = 4 * VALUES;
                Self { start: panel.as_ptr().cast(), line: 64, tile, step: tile * rows.div_ceil(SIDE) }
            }
            Left::Rows(a) => {
                let line = 2 * a.strides()[0];
                Self { start: a.as_ptr().cast(), line, tile: SIDE * line, step: 64 }
            }
        }
    }

    /// First line to prefetch beside a tile, and the bytes from one prefetched line to the next.
    fn part(self, tile: usize, count: usize) -> (*const u8, usize) {
        let row = if self.line == 64 { 64 * count } else { self.line };
        (self.start.wrapping_add(PREFETCHED * tile * row), row)
    }
}

/// Lines that are prefetched in a step.
const PREFETCHED: usize = 3;

/// Packs vectors into tiles in memory, in the layout of tile registers: a line for each vector, or
/// for each pair of elements. Tiles of the same elements along `k` are adjacent, with zeros for
/// missing vectors and elements.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn pack<E: Element, const BY_VECTOR: bool>(panel: *mut u32, tiles: usize, vectors: Matrix<'_, E>) {
    let (start, strides) = (vectors.as_ptr(), vectors.strides());
    for (step, k) in (0..vectors.cols()).step_by(ELEMENTS).enumerate() {
        let left = (vectors.cols() - k).min(ELEMENTS);
        for tile in 0..tiles {
            let first = (tile * SIDE).min(vectors.rows());
            let count = (vectors.rows() - first).min(SIDE);
            let from = start.wrapping_add(first * strides[0] + k * strides[1]);
            // SAFETY: the panel has room, and elements beyond the matrix are left out.
            unsafe {
                let to = panel.add((step * tiles + tile) * VALUES).cast();
                match (count, left) {
                    (SIDE, ELEMENTS) => pack_tile::<E, BY_VECTOR>(to, from, [SIDE, ELEMENTS], strides),
                    _ => pack_tile::<E, BY_VECTOR>(to, from, [count, left], strides),
                }
            }
        }
    }
}

/// Packs `count` vectors of `left` elements into one tile register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn pack_tile<E: Element, const BY_VECTOR: bool>(
    to: *mut __m512i,
    from: *const E,
    [count, left]: [usize; 2],
    [vector_stride, stride]: [usize; 2],
) {
    let mut lines = [_mm512_setzero_si512(); SIDE];
    // Loops of a fixed length keep the lines in registers.
    // SAFETY: counts and masks leave out missing elements.
    unsafe {
        if stride == 1 {
            for (i, line) in lines.iter_mut().enumerate() {
                *line = narrow_along(from.wrapping_add(i * vector_stride), if i < count { left } else { 0 });
            }
        } else if vector_stride == 1 {
            for (i, line) in lines.iter_mut().enumerate() {
                let (one, other) = (from.wrapping_add(2 * i * stride), from.wrapping_add((2 * i + 1) * stride));
                let mask = |element: usize| if element < left { first(count) } else { 0 };
                *line = pairs(one, other, mask(2 * i), mask(2 * i + 1));
                // The next panel of columns reads the line behind.
                _mm_prefetch::<_MM_HINT_T0>(one.wrapping_add(ELEMENTS).cast());
                _mm_prefetch::<_MM_HINT_T0>(other.wrapping_add(ELEMENTS).cast());
            }
        } else {
            let mut values = [[0_u32; SIDE]; SIDE];
            for (element, vector) in (0..left).flat_map(|element| (0..count).map(move |vector| (element, vector))) {
                let x = *from.add(vector * vector_stride + element * stride);
                values[element / 2][vector] |= u32::from(bf16::narrow(x.wide()).to_bits()) << (16 * (element % 2));
            }
            lines = std::mem::transmute::<[[u32; SIDE]; SIDE], [__m512i; SIDE]>(values);
        }
        if (stride == 1) != BY_VECTOR {
            transpose(&mut lines);
        }
        for (i, line) in lines.iter().enumerate() {
            to.add(i).write(*line);
        }
    }
}

/// Writes the sums of a tile, 16 or 32 rows of 32, from operands of `count` steps.
///
/// # Safety
/// The thread's tile registers must be configured, `sums` must have room for 32 rows, and the
/// operands must be that long.
unsafe fn multiply(sums: *mut f32, a: Lines, b: *const u32, count: usize, is_tall: bool, next: (*const u8, usize)) {
    // Registers 0 to 3 are sums, 4 and 5 rows, 6 and 7 columns. `{other}` is without use in a tile
    // of 16 rows.
    macro_rules! by_steps {
        ($zero:literal, $step:literal, $store:literal) => {
            // SAFETY: the operands and the sums are that long; a prefetch may have any address.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    $zero,
                    "test {count}, {count}",
                    "jz 3f",
                    "2:",
                    "tileloadd tmm4, [{a} + {a_line}]",
                    "tileloadd tmm6, [{b} + {line}]",
                    "tileloadd tmm7, [{b} + {line} + 1024]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "prefetcht1 [{next}]",
                    "prefetcht1 [{next} + {next_line}]",
                    "prefetcht1 [{next} + 2 * {next_line}]",
                    "add {next}, 64",
                    $step,
                    "add {a}, {a_step}",
                    "add {b}, 2048",
                    "dec {count}",
                    "jnz 2b",
                    "3:",
                    "tilestored [{sums} + 2 * {line}], tmm0",
                    "tilestored [{sums} + 2 * {line} + 64], tmm1",
                    $store,
                    a = inout(reg) a.start => _,
                    a_line = in(reg) a.line,
                    other = inout(reg) a.start.wrapping_add(a.tile) => _,
                    a_step = in(reg) a.step,
                    b = inout(reg) b => _,
                    count = inout(reg) count => _,
                    sums = in(reg) sums,
                    line = in(reg) 64_usize,
                    next = inout(reg) next.0 => _,
                    next_line = in(reg) next.1,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        };
    }
    if is_tall {
        by_steps!(
            "tilezero tmm2\ntilezero tmm3",
            "tileloadd tmm5, [{other} + {a_line}]\ntdpbf16ps tmm2, tmm5, tmm6\ntdpbf16ps tmm3, tmm5, tmm7\nadd {other}, {a_step}",
            "tilestored [{sums} + 2 * {line} + 2048], tmm2\ntilestored [{sums} + 2 * {line} + 2112], tmm3"
        );
    } else {
        by_steps!("/* {other} */", "", "");
    }
}
