"""Everything that meets the kernel: compiling, pinning, maps, attachment, sysctls."""
