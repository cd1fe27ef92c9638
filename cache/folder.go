package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
)

// folder is the directory of a cache. It knows the paths of the files in the directory, and creates and names temporary
// files. Its fields do not change after OpenBlobs, so folder needs no lock.
type folder struct {
	dir string
	// whether the file system supports unnamed files (O_TMPFILE), which the kernel deletes when they are closed
	unnamed bool
	foreign bool // whether the directory belongs to another host, so that nothing in it may be changed or locked
}

// segDir returns the directory of segments and their sidecars.
func (d *folder) segDir() string { return filepath.Join(d.dir, "seg") }

// tmpDir returns the directory of files that are being written. It is on the same file system as the other directories,
// so that files can be renamed into them.
func (d *folder) tmpDir() string { return filepath.Join(d.dir, "tmp") }

// makeDirs creates the directories of the cache that do not exist.
func (d *folder) makeDirs() error {
	for _, sub := range []string{d.segDir(), d.tmpDir(), filepath.Join(d.dir, "big")} {
		if err := os.MkdirAll(sub, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// writeSidecar writes the sidecar of a segment. It writes a temporary file and renames it to the final name, so that
// readers never see a partly written sidecar.
func (d *folder) writeSidecar(segment string, content []byte) error {
	f, err := os.CreateTemp(d.tmpDir(), "idx-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(d.segDir(), sidecarName(segment)))
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// bigPath returns the path of the file for a large blob: big/ab/<hex>, where ab are the first two digits of the id.
func (d *folder) bigPath(id object.ID) string {
	hex := id.String()
	return filepath.Join(d.dir, "big", hex[:2], hex)
}

// removeBroken removes the file of a large blob whose contents are damaged or incomplete, unless the directory is
// foreign.
func (d *folder) removeBroken(id object.ID) {
	if !d.foreign {
		os.Remove(d.bigPath(id))
	}
}

// temp creates an empty temporary file. The file is unnamed (O_TMPFILE) if the file system supports that. Otherwise the
// file has a name and a flock, by which clearTemp recognizes that the file is in use.
func (d *folder) temp() (*os.File, error) {
	if d.unnamed {
		fd, err := unix.Open(d.tmpDir(), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, fmt.Errorf("create temporary file: %w", err)
		}
		return os.NewFile(uintptr(fd), filepath.Join(d.tmpDir(), "unnamed")), nil
	}
	// Another process may remove the file (clearTemp) before this process locks the file. In this case, create another
	// file.
	for {
		f, err := os.CreateTemp(d.tmpDir(), "spool-*")
		if err != nil {
			return nil, err
		}
		if _, err := lock(f); err != nil {
			d.discard(f)
			return nil, err
		}
		if _, ok := linked(f); ok {
			return f, nil
		}
		f.Close() // another process has removed the file
	}
}

// discard closes a temporary file. If the file has a temporary name, discard removes it.
func (d *folder) discard(f *os.File) {
	if !d.unnamed {
		os.Remove(f.Name())
	}
	f.Close()
}

// probeUnnamed reports whether the file system can create files without a name (O_TMPFILE) and give them a name later.
func (d *folder) probeUnnamed() bool {
	d.unnamed = true
	f, err := d.temp()
	if err != nil {
		return false
	}
	defer f.Close()
	name := filepath.Join(d.tmpDir(), "probe-"+strconv.Itoa(os.Getpid()))
	if err := link(f, name); err != nil {
		return false
	}
	return os.Remove(name) == nil
}

// clearTemp removes the temporary files of processes that have ended. It recognizes these files because their flock
// is free.
func (d *folder) clearTemp() {
	names, err := os.ReadDir(d.tmpDir())
	if err != nil {
		return
	}
	for _, n := range names {
		f, err := os.Open(filepath.Join(d.tmpDir(), n.Name()))
		if err != nil {
			continue
		}
		if locked, err := lock(f); err == nil && locked {
			os.Remove(f.Name())
		}
		f.Close()
	}
}

// name moves a temporary file to its final path. A file that exists at this path is replaced.
func (d *folder) name(f *os.File, path string) error {
	// Up to three more attempts: the directory may not exist, and another process may store the same file at the same
	// time.
	for try := 0; ; try++ {
		var err error
		if d.unnamed {
			err = link(f, path)
		} else {
			err = os.Rename(f.Name(), path)
		}
		switch {
		case err == nil || try == 3:
			return err
		case errors.Is(err, fs.ErrNotExist):
			err = os.MkdirAll(filepath.Dir(path), 0o700)
		case errors.Is(err, fs.ErrExist):
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}
