"""Worker: owns one device, executes the steps that a control plane sends, and streams the sampled tokens back."""
