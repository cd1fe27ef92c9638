//go:build !amd64

package fuse

// legacyUse returns useAny, because newer architectures do not have the system calls of peek_amd64.go.
func (c sysCall) legacyUse(bool) use { return useAny }

// legacyChanges returns false, for the same reason.
func (c sysCall) legacyChanges() bool { return false }
