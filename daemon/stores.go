package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/odb"
)

// A store directory is locked (flock, shared) by every process that has it open, so that whoever wants to remove it
// knows that nobody has. It gets another name before it is removed: a process that comes then makes a new one.

var (
	errStoreUsed = errors.New("a mount uses it")
	errUnsettled = errors.New("it is being mounted")
)

// leftTime is how old what somebody is making must be to count as left by a dead process.
const leftTime = time.Hour

// holdStore locks a store's directory, which is made if it is missing, until release is called.
func holdStore(dir string) (release func(), err error) {
	for {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
		f, err := lockDir(dir, unix.LOCK_SH)
		if err == nil {
			return func() {
				_ = unix.Flock(int(f.Fd()), unix.LOCK_UN) // a child that is being started may have a copy for a moment
				f.Close()
			}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
}

// lockDir locks the directory that has the name; fs.ErrNotExist if it lost it meanwhile.
func lockDir(dir string, how int) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil {
		var mine, there os.FileInfo
		if mine, err = f.Stat(); err == nil {
			there, err = os.Stat(dir)
		}
		if err == nil && !os.SameFile(mine, there) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// lockStore locks a store that nobody has open; errStoreUsed if somebody has.
func lockStore(dir string) (*os.File, error) {
	f, err := lockDir(dir, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errStoreUsed
	}
	if err != nil {
		return nil, fmt.Errorf("lock store: %w", err)
	}
	return f, nil
}

// removeStore removes a store; errStoreUsed if somebody has it open.
func removeStore(dir string) error {
	f, err := lockStore(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	gone := filepath.Join(filepath.Dir(dir), removedPrefix+strconv.Itoa(os.Getpid())+"-"+filepath.Base(dir))
	if err := os.Rename(dir, gone); err != nil {
		return fmt.Errorf("remove store: %w", err)
	}
	if err := os.RemoveAll(gone); err != nil {
		return fmt.Errorf("remove store: %w", err)
	}
	return nil
}

// storeDirs lists the stores, and what a killed process was about to remove.
func storeDirs(state string) (stores, removed []string, err error) {
	entries, err := os.ReadDir(filepath.Join(state, "stores"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("list stores: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(state, "stores", e.Name())
		switch {
		case strings.HasPrefix(e.Name(), removedPrefix):
			removed = append(removed, path)
		case e.IsDir():
			stores = append(stores, path)
		}
	}
	return stores, removed, nil
}

// ExamineStores looks whether what was fetched is whole; deep reads all of it.
func ExamineStores(ctx context.Context, state string, repair, deep bool) ([]Finding, error) {
	d := &doctor{homes: homes{state, zap.NewNop()}, repair: repair}
	stores, removed, err := storeDirs(state)
	if err != nil {
		return nil, err
	}
	for _, dir := range removed {
		d.mend(dir, "a killed process was about to remove it", "removes it", func() error { return os.RemoveAll(dir) })
	}
	needed, err := neededStores(state)
	if err != nil {
		d.warn("stores", "", "not every session can be read, so no store counts as not needed: %v", err)
	}
	for _, dir := range stores {
		if ctx.Err() != nil {
			return d.findings, ctx.Err()
		}
		d.store(dir, deep, err == nil && !needed[filepath.Base(dir)])
	}
	return d.findings, nil
}

func (d *doctor) store(dir string, deep, unneeded bool) {
	info, ok := fetch.Peek(dir)
	if !ok {
		return // nothing was fetched yet, or it is being made
	}
	name := info.URL
	if name == "" {
		name = dir
	}
	left, _ := filepath.Glob(filepath.Join(quoteGlob(dir), "git-*.tmp"))
	for _, path := range left {
		if st, err := os.Stat(path); err == nil && time.Since(st.ModTime()) > leftTime {
			d.mend(path, "a killed process was making it", "removes it", func() error { return os.RemoveAll(path) })
		}
	}
	problems, err := odb.Check(info.Objects, info.Format, deep)
	if err != nil {
		d.wrong(name, "", "its objects cannot be looked at: %v", err)
		return
	}
	bad := 0
	for _, p := range problems {
		switch {
		case p.Junk:
			d.mend(p.Path, p.What, "removes it", func() error { return os.Remove(p.Path) })
		case unneeded:
			bad++
		default:
			bad++
			d.wrong(p.Path, "unmount what is mounted of "+name+" and end its sessions; then artifactfs doctor --fix removes the store, and a mount fetches it anew", "%s", p.What)
		}
	}
	switch {
	case bad > 0 && unneeded:
		d.mend(dir, problems[0].What+"; no session needs this store", "removes it: it is fetched anew when it is needed", func() error { return removeStore(dir) })
	case bad == 0:
		if s, err := odb.Look(info.Objects, info.Format); err == nil {
			d.ok(name, "store is whole: objects %d, packs %d, %d KiB", s.Objects+s.Loose, s.Packs, s.Bytes>>10)
		}
	}
}

// neededStores gives the names of the stores that mounts and sessions are made of. An error means that there may be
// others.
func neededStores(state string) (map[string]bool, error) {
	h := homes{state, zap.NewNop()}
	ids, _, err := h.ids()
	if err != nil {
		return nil, err
	}
	needed := map[string]bool{}
	for _, id := range ids {
		dir := filepath.Join(h.dir(), id)
		// Whatever the record says: this is where git looks for objects.
		text, err := os.ReadFile(filepath.Join(dir, "git", "objects", "info", "alternates"))
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(line), filepath.Join(state, "stores")+"/"); ok {
				name, _, _ := strings.Cut(rest, "/")
				needed[name] = true
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return needed, fmt.Errorf("read session %s: %w", id, err)
		}
		r, err := readRecord(dir)
		switch {
		case err == nil:
			needed[storeName(r.Remote)] = true
		case !errors.Is(err, fs.ErrNotExist):
			return needed, err
		case len(text) > 0:
		case hasOverlay(dir):
			return needed, fmt.Errorf("read session %s: %w", id, errNoRecord)
		default:
			t, err := h.existing(id)
			if err == nil { // a killed process left it
				t.unlock()
			} else if errors.Is(err, disk.ErrLocked) {
				return needed, fmt.Errorf("read session %s: %w", id, errUnsettled)
			}
		}
	}
	// What will be mounted again when a daemon restores it may find its remote out of reach.
	files, err := filepath.Glob(filepath.Join(quoteGlob(filepath.Join(state, "registry")), "*.json"))
	for _, path := range files {
		text, readErr := os.ReadFile(path)
		var r registered
		if errors.Is(readErr, fs.ErrNotExist) {
			continue // unmounted meanwhile
		}
		if err = errors.Join(err, readErr); err == nil {
			err = json.Unmarshal(text, &r)
		}
		needed[storeName(r.Request.Remote)] = true
	}
	if err != nil {
		return needed, fmt.Errorf("read registry: %w", err)
	}
	return needed, nil
}
