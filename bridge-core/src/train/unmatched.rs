//! Parameters that only a checkpoint has, or only the model that is loaded from it.

use std::path::Path;

/// The names in which a checkpoint and the model of a run differ, over all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmatched {
    /// Parameters of the model that the checkpoint lacks: they keep their initial values.
    pub absent: Vec<String>,
    /// Parameters and optimizer state of the checkpoint that the model and its optimizer do not
    /// use.
    pub unused: Vec<String>,
}

impl Unmatched {
    /// Warnings; empty if everything is matched.
    pub(in crate::train) fn warnings(&self, checkpoint: &Path) -> Vec<String> {
        let path = checkpoint.display();
        let absent = (!self.absent.is_empty()).then(|| {
            format!(
                "{} parameters are not in {path} and keep their initial values, as in a run that begins: {}",
                self.absent.len(),
                self.absent.join(", ")
            )
        });
        let unused = (!self.unused.is_empty())
            .then(|| format!("{} tensors of {path} are not used: {}", self.unused.len(), self.unused.join(", ")));
        absent.into_iter().chain(unused).collect()
    }
}

impl std::fmt::Display for Unmatched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let absent = (!self.absent.is_empty()).then(|| format!("it lacks {}", self.absent.join(", ")));
        let unused =
            (!self.unused.is_empty()).then(|| format!("the model does not use its {}", self.unused.join(", ")));
        f.write_str(&absent.into_iter().chain(unused).collect::<Vec<_>>().join("; "))
    }
}
