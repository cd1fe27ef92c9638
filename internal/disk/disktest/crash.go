package disktest

import "github.com/artifactfs/artifactfs/internal/disk"

// CrashFS is a directory of the host that remembers what was synced, so that Crash can tell what a power cut leaves.
type CrashFS struct {
	disk.FS
}

// NewCrashFS takes a directory; what is in it counts as synced. All paths given to the CrashFS lie in it.
func NewCrashFS(root string) (*CrashFS, error) { panic("not written yet") }

// Crash writes to dst, which must not exist, what a power cut at this moment may leave.
func (c *CrashFS) Crash(dst string, seed uint64) error { panic("not written yet") }

// Close closes what the CrashFS holds open.
func (c *CrashFS) Close() error { panic("not written yet") }
