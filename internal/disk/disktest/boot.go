package disktest

import (
	"os"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Booted returns fs as a host sees it whose kernel has another boot ID, a UUID in text: after a power cut.
func Booted(fs disk.FS, id string) disk.FS { return booted{fs, id} }

type booted struct {
	disk.FS
	id string
}

func (b booted) BootID() (string, error) { return b.id, nil }

// Unsynced returns fs with syncs that return at once, for tests in which no power is cut.
func Unsynced(fs disk.FS) disk.FS { return unsynced{fs} }

type unsynced struct{ disk.FS }

type unsyncedFile struct{ disk.File }

func (u unsynced) SyncDir(path string) error { return nil }

func (u unsynced) OpenFile(path string, flag int, perm os.FileMode) (disk.File, error) {
	f, err := u.FS.OpenFile(path, flag, perm)
	if err != nil {
		return nil, err
	}
	return unsyncedFile{f}, nil
}

func (unsyncedFile) Sync() error     { return nil }
func (unsyncedFile) DataSync() error { return nil }
