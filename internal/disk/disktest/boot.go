package disktest

import (
	"os"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Booted returns fs with the boot ID id, which is a UUID as text. A package that reads the boot ID sees a restart of
// the host.
func Booted(fs disk.FS, id string) disk.FS { return booted{fs, id} }

// booted is the FS that Booted returns.
type booted struct {
	disk.FS
	id string
}

// BootID returns the boot ID that was passed to Booted.
func (b booted) BootID() (string, error) { return b.id, nil }

// Unsynced returns fs with syncs that have no effect, which makes tests without a power cut faster.
func Unsynced(fs disk.FS) disk.FS { return unsynced{fs} }

// unsynced is the FS that Unsynced returns.
type unsynced struct{ disk.FS }

// unsyncedFile is a file whose syncs have no effect.
type unsyncedFile struct{ disk.File }

// SyncDir does nothing.
func (u unsynced) SyncDir(path string) error { return nil }

// OpenFile opens a file whose syncs have no effect.
func (u unsynced) OpenFile(path string, flag int, perm os.FileMode) (disk.File, error) {
	f, err := u.FS.OpenFile(path, flag, perm)
	if err != nil {
		return nil, err
	}
	return unsyncedFile{f}, nil
}

// Sync and DataSync do nothing.
func (unsyncedFile) Sync() error     { return nil }
func (unsyncedFile) DataSync() error { return nil }
