package readprofile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Dir is the directory with the profiles of one remote. Each profile is a file that has the name of the profile.
// Several processes may use a Dir at the same time.
type Dir struct {
	Path string // the directory; Add creates it if it does not exist
}

// DirOf returns the Dir of a store. The parameter store is the store's directory.
func DirOf(store string) Dir { return Dir{filepath.Join(store, "profiles")} }

// lockName is the name of the file that is locked while a profile is changed. It cannot be the name of a profile.
const lockName = ".lock"

// Names returns the names of the profiles, sorted.
func (d Dir) Names() ([]string, error) {
	entries, err := os.ReadDir(d.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list read profiles: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() && ValidName(e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// Read returns a profile. The error wraps fs.ErrNotExist if the profile does not exist, and ErrFormat if its file is
// damaged.
func (d Dir) Read(name string) (Profile, error) {
	if err := ValidName(name); err != nil {
		return Profile{}, err
	}
	return ReadFile(filepath.Join(d.Path, name))
}

// ReadFile reads a profile from a file. It reads at most MaxSize bytes.
func ReadFile(path string) (Profile, error) {
	f, err := os.Open(path)
	if err != nil {
		return Profile{}, fmt.Errorf("read profile: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return Profile{}, fmt.Errorf("read profile: %w", err)
	}
	return Parse(b)
}

// Add merges a recording into a profile, which it creates if it does not exist. A damaged profile is replaced.
func (d Dir) Add(name string, r Recording) error {
	return d.change(name, func(old Profile, _ error) (Profile, bool) { return old.Merge(r), true })
}

// change calls the function edit, and replaces a profile by its first result if its second result is true. The
// parameters of edit are the present profile and the error of Read, which is not nil if the profile does not exist or
// is damaged.
func (d Dir) change(name string, edit func(old Profile, err error) (Profile, bool)) error {
	if err := ValidName(name); err != nil {
		return err
	}
	unlock, err := d.lock()
	if err != nil {
		return fmt.Errorf("write read profile: %w", err)
	}
	defer unlock()
	old, err := d.Read(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrFormat) {
		return fmt.Errorf("write read profile: %w", err)
	}
	p, write := edit(old, err)
	if !write {
		return nil
	}
	if err := disk.WriteFile(filepath.Join(d.Path, name), p.Encode(), 0o600); err != nil {
		return fmt.Errorf("write read profile: %w", err)
	}
	return nil
}

// Adopt stores a profile of another machine, unless a valid profile with that name exists.
func (d Dir) Adopt(name string, p Profile) error {
	return d.change(name, func(old Profile, err error) (Profile, bool) { return p, err != nil })
}

// Delete removes a profile. The error wraps fs.ErrNotExist if the profile does not exist.
func (d Dir) Delete(name string) error {
	if err := ValidName(name); err != nil {
		return err
	}
	// check first whether the directory exists, because locking would create it
	if _, err := os.Stat(d.Path); err != nil {
		return fmt.Errorf("delete read profile: %w", err)
	}
	unlock, err := d.lock()
	if err != nil {
		return fmt.Errorf("delete read profile: %w", err)
	}
	defer unlock()
	if err := os.Remove(filepath.Join(d.Path, name)); err != nil {
		return fmt.Errorf("delete read profile: %w", err)
	}
	return nil
}

// lock creates the directory and locks it against other writers, until the function unlock is called.
func (d Dir) lock() (unlock func(), err error) {
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		return nil, err
	}
	return disk.Lock(filepath.Join(d.Path, lockName))
}
