"""Who may use a control plane: certificates and keys."""
