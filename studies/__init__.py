"""The paper's tables and figures, and what lies beyond them: one module and one template for each study."""
