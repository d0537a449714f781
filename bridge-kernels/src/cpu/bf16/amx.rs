//! Micro-kernel of products with bfloat16 operands for AMX: 2 x 2 tile registers hold 32 x 32 sums
//! in float32, and `tdpbf16ps` adds the products of 32 elements along `k` to one of them.
//!
//! A step of a panel is a tile register of 16 lines. Those of rows have a line of 32 elements for
//! each row, those of columns a line for each pair of elements along `k`, with 16 columns.

use std::arch::asm;
use std::arch::x86_64::{__m512i, _mm512_setzero_si512};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use half::bf16;

use super::blocks::MicroKernel;
use super::kernel::{COLUMNS, LANES, Line, Terms, first, narrow_along, pairs, store_rows, transpose};
use crate::cpu::element::Element;
use crate::cpu::gemm::{Matrix, MatrixMut};

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

/// Asks Linux for the state of tile registers, which threads save on a stack for signals or in
/// switches only once a process asked (`Documentation/arch/x86/xstate.rst`).
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
        for (tile, first) in (0..rows.rows()).step_by(SIDE).enumerate() {
            let vectors = rows.row_range(first, SIDE.min(rows.rows() - first));
            // SAFETY: the panel has room, the matrix was checked against its slice, and the caller
            // promises the machine.
            unsafe { pack::<E, true>(panel.as_mut_ptr().add(tile * VALUES), tiles * VALUES, vectors) };
        }
    }

    unsafe fn pack_columns<E: Element>(panel: &mut [u32], columns: Matrix<'_, E>) {
        assert_eq!(panel.len(), COLUMNS * Self::steps(columns.rows()), "a panel fits its columns");
        let vectors = columns.t();
        for tile in 0..2 {
            let first = (tile * SIDE).min(vectors.rows());
            let vectors = vectors.row_range(first, (vectors.rows() - first).min(SIDE));
            // SAFETY: as above.
            unsafe { pack::<E, false>(panel.as_mut_ptr().add(tile * VALUES), 2 * VALUES, vectors) };
        }
    }

    unsafe fn start() -> Self {
        // SAFETY: the caller promises the machine; only this type uses tile registers.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION, options(nostack, readonly, preserves_flags));
        }
        Self(PhantomData)
    }

    unsafe fn tile<O: Element>(
        &self,
        out: &MatrixMut<'_, O>,
        place: [usize; 2],
        rows: usize,
        [a, b]: [&[u32]; 2],
        terms: Terms<'_>,
    ) {
        let steps = b.len() / COLUMNS;
        assert!(steps % SIDE == 0 && a.len() == Self::stored_rows(rows) * steps, "panels of one tile");
        assert!(rows <= Self::ROWS && place[0] + rows <= out.rows(), "a tile lies inside the product");
        let mut sums = MaybeUninit::<[Line; 4 * SIDE]>::uninit();
        // SAFETY: the panels have these sizes, and the sums that are read have been written.
        unsafe {
            multiply(sums.as_mut_ptr().cast(), a, b.as_ptr(), steps / SIDE);
            store_rows(out, place, rows, sums.as_ptr().cast(), terms);
        }
    }
}

/// Packs at most [`SIDE`] vectors into tile registers that are `width` values apart, with zeros for
/// missing vectors and elements: a line for each vector, or for each pair of elements.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn pack<E: Element, const BY_VECTOR: bool>(panel: *mut u32, width: usize, vectors: Matrix<'_, E>) {
    let (start, count, len) = (vectors.as_ptr(), vectors.rows(), vectors.cols());
    let [vector_stride, stride] = vectors.strides();
    for (step, k) in (0..len).step_by(ELEMENTS).enumerate() {
        let left = (len - k).min(ELEMENTS);
        let mut lines = [_mm512_setzero_si512(); SIDE];
        // SAFETY: counts and masks leave out elements beyond the matrix, and the panel has room.
        unsafe {
            if stride == 1 {
                for (i, line) in lines.iter_mut().enumerate().take(count) {
                    *line = narrow_along(start.add(i * vector_stride + k), left);
                }
            } else {
                for (i, line) in lines.iter_mut().enumerate().take(left.div_ceil(2)) {
                    let (one, is_pair) = (start.add((k + 2 * i) * stride), 2 * i + 1 < left);
                    let other = one.wrapping_add(stride);
                    if vector_stride == 1 {
                        *line = pairs(one, other, first(count), if is_pair { first(count) } else { 0 });
                        continue;
                    }
                    let mut values = [0_u32; SIDE];
                    for (vector, value) in values.iter_mut().enumerate().take(count) {
                        let bits = |from: *const E| bf16::narrow((*from.add(vector * vector_stride)).wide()).to_bits();
                        *value = u32::from(bits(one)) | if is_pair { u32::from(bits(other)) << 16 } else { 0 };
                    }
                    *line = std::mem::transmute::<[u32; SIDE], __m512i>(values);
                }
            }
            if (stride == 1) != BY_VECTOR {
                transpose(&mut lines);
            }
            let to = panel.add(step * width).cast::<__m512i>();
            for (i, line) in lines.into_iter().enumerate() {
                to.add(i).write(line);
            }
        }
    }
}

/// Writes the sums of a tile, 16 or 32 rows of 32, from panels of `count` steps.
///
/// # Safety
/// The thread's tile registers must be configured, `sums` must have room for 32 rows, and the panel
/// of columns must have `count` steps.
unsafe fn multiply(sums: *mut f32, a: &[u32], b: *const u32, count: usize) {
    // Registers 0 to 3 are sums, 4 and 5 rows, 6 and 7 columns.
    macro_rules! by_steps {
        ($rows:literal, $zero:literal, $step:literal, $store:literal) => {
            // SAFETY: the panels and the sums are that long.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    $zero,
                    "test {count}, {count}",
                    "jz 3f",
                    "2:",
                    "tileloadd tmm4, [{a} + {line}]",
                    "tileloadd tmm6, [{b} + {line}]",
                    "tileloadd tmm7, [{b} + {line} + 1024]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    $step,
                    concat!("add {a}, ", $rows, " * 64"),
                    "add {b}, 2048",
                    "dec {count}",
                    "jnz 2b",
                    "3:",
                    "tilestored [{sums} + 2 * {line}], tmm0",
                    "tilestored [{sums} + 2 * {line} + 64], tmm1",
                    $store,
                    a = inout(reg) a.as_ptr() => _,
                    b = inout(reg) b => _,
                    count = inout(reg) count => _,
                    sums = in(reg) sums,
                    line = in(reg) 64_usize,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        };
    }
    if a.len() == VALUES * count {
        by_steps!("16", "", "", "");
    } else {
        by_steps!(
            "32",
            "tilezero tmm2\ntilezero tmm3",
            "tileloadd tmm5, [{a} + {line} + 1024]\ntdpbf16ps tmm2, tmm5, tmm6\ntdpbf16ps tmm3, tmm5, tmm7",
            "tilestored [{sums} + 2 * {line} + 2048], tmm2\ntilestored [{sums} + 2 * {line} + 2112], tmm3"
        );
    }
}
