package odb

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/proc"
)

const (
	// graceMost is how long old packs wait for processes that may be reading them.
	graceMost = time.Minute
	// graceCrowded is the same when there are more packs than JoinOptions.Crowd.
	graceCrowded = time.Second
	// graceYoung is the age at which a git process that has mapped nothing of a pack directory will not have read it. It
	// may be about anything on this host, so it is not much; whom it misses still looks again for what is gone.
	graceYoung = 500 * time.Millisecond
	// gracePoll and gracePollMost bound the pauses between two looks at who is running.
	gracePoll, gracePollMost = 10 * time.Millisecond, time.Second
)

// retire removes old packs all of whose objects are in others: in those left, or in the joined one, whose name may be "".
// It waits until nobody reads them who has not seen the others, and makes sure then that these are still there.
func (s *Store) retire(ctx context.Context, old, left []candidate, joined string, o JoinOptions) (removed int, err error) {
	if err := s.awaitReaders(ctx, time.Now(), o); err != nil {
		return 0, err
	}
	if joined != "" {
		p := &pack{path: filepath.Join(s.dir, joined), format: s.format, number: s.serial.Add(1)}
		if err := p.open(); err != nil {
			return 0, err
		}
		defer p.close()
		left = append([]candidate{{pack: p, idx: p.files.Load().idx}}, left...)
	}
	for _, c := range left {
		if !whole(c.path) {
			return 0, errOvertaken // by a repack, which looks after the old ones itself
		}
	}
	var gone []string
	for _, c := range old {
		if _, err := os.Lstat(c.path + ".keep"); err == nil || !contained(c.idx, left) {
			continue
		}
		gone = append(gone, c.path)
	}
	return len(gone), removePacks(s.dir, gone)
}

// removePacks removes packs in an order in which nobody, and no power cut, finds one of them without its mark.
func removePacks(dir string, paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	if err := dropMultiIndex(dir, paths); err != nil {
		return err
	}
	for _, suffixes := range [][]string{{".idx"}, {".pack", ".rev", ".bitmap", ".promisor"}} {
		for _, path := range paths {
			for _, suffix := range suffixes {
				if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
		}
		if err := disk.OS.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// orphanAge is how long a pack without its index must have been one to be the remains of a removal that was cut short: one
// that is just coming gets its index in a moment.
const orphanAge = time.Hour

// removeOrphans removes what is left of packs whose index removePacks has removed, and of marks of packs that never came.
func removeOrphans(dir string, now time.Time) error {
	marks, err := filepath.Glob(filepath.Join(escapeGlob.Replace(dir), "pack-*.promisor"))
	if err != nil {
		return err
	}
	for _, mark := range marks {
		path := strings.TrimSuffix(mark, ".promisor")
		st, err := os.Lstat(mark)
		if err != nil || now.Sub(st.ModTime()) < orphanAge {
			continue
		}
		if _, err := os.Lstat(path + ".idx"); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		// A rename changes the time of the inode.
		if st, err := os.Lstat(path + ".pack"); err == nil && now.Sub(changeTime(st)) < orphanAge {
			continue
		}
		for _, suffix := range []string{".pack", ".rev", ".bitmap", ".promisor"} {
			if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func changeTime(st fs.FileInfo) time.Time {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return time.Unix(s.Ctim.Unix())
	}
	return st.ModTime()
}

// dropMultiIndex removes multi-pack indexes that name one of the packs, as git does before it removes packs. They
// hold nothing that the indexes of the packs do not.
func dropMultiIndex(dir string, paths []string) error {
	for _, pattern := range []string{"multi-pack-index", "multi-pack-index.d/*.midx"} {
		found, err := filepath.Glob(filepath.Join(escapeGlob.Replace(dir), pattern))
		if err != nil {
			return err
		}
		for _, name := range found {
			named, err := namesAny(name, paths)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if named {
				return removeMultiIndex(dir)
			}
		}
	}
	return nil
}

var escapeGlob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

func namesAny(multi string, paths []string) (bool, error) {
	data, err := os.ReadFile(multi)
	if err != nil {
		return false, err
	}
	for _, path := range paths {
		if bytes.Contains(data, []byte(filepath.Base(path)+".")) {
			return true, nil
		}
	}
	return false, nil
}

// removeMultiIndex removes the index, or the list of a chain of them, before what belongs to it.
func removeMultiIndex(dir string) error {
	for _, pattern := range []string{"multi-pack-index", "multi-pack-index.d/multi-pack-index-chain", "multi-pack-index-*.rev", "multi-pack-index-*.bitmap",
		"multi-pack-index.d/multi-pack-index-*"} {
		found, err := filepath.Glob(filepath.Join(escapeGlob.Replace(dir), pattern))
		if err != nil {
			return err
		}
		for _, name := range found {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// tidyingMost is the age of a lock at which whoever took it is believed to be dead.
const tidyingMost = time.Hour

// tidying reports whether git repacks the repository that objects belongs to, or writes an index of several packs.
func tidying(objects string, now time.Time) bool {
	for _, name := range []string{"maintenance.lock", "pack/multi-pack-index.lock"} {
		if st, err := os.Stat(filepath.Join(objects, name)); err == nil && now.Sub(st.ModTime()) < tidyingMost {
			return true
		}
	}
	name := filepath.Join(filepath.Dir(objects), "gc.pid")
	st, err := os.Stat(name)
	if err != nil || now.Sub(st.ModTime()) >= tidyingMost {
		return false
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return false
	}
	// "PID HOST". A process of another host cannot be asked.
	pid, host, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	n, err := strconv.Atoi(pid)
	if here, _ := os.Hostname(); err != nil || n <= 0 || host != here {
		return err == nil && n > 0
	}
	return syscall.Kill(n, 0) != syscall.ESRCH
}

// awaitReaders waits until no process runs that may have read the pack directory before since, and not after; a running
// fsck is waited for whenever it has begun: it reports packs that go under it, whatever others hold. It does not wait for
// ever: see graceMost.
func (s *Store) awaitReaders(ctx context.Context, since time.Time, o JoinOptions) error {
	for pause := gracePoll; ; pause = min(2*pause, gracePollMost) {
		found, checking := readers(s.dir, since, o.Reader)
		most := graceMost
		if packs, err := listPacks(s.dir); err == nil && len(packs) > o.Crowd && !checking {
			most = graceCrowded
		}
		if !found || time.Since(since) > most {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readers reports whether a process that started before since may read packs of dir as it found them then: it has some
// of them mapped, as git maps indexes, or it is a git that has just started. Others' processes that may not be looked
// into count only as the latter. An fsck counts whenever it started; checking says that there is one.
func readers(dir string, since time.Time, spared func(pid int) bool) (found, checking bool) {
	pids, err := proc.PIDs()
	if err != nil {
		return false, false
	}
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return false, false
	}
	now, uptime := time.Now(), time.Duration(boot.Nano())
	for _, pid := range pids {
		if pid == os.Getpid() {
			continue
		}
		p := proc.Of(pid)
		stat, err := p.Stat()
		if err != nil {
			continue
		}
		isGit, age := strings.HasPrefix(stat.Name, "git"), uptime-stat.Started()
		fsck := isGit && checks(p)
		if now.Sub(since) >= age+proc.Tick && !fsck || spared != nil && spared(pid) {
			continue
		}
		if isGit && age < graceYoung || p.MapsBelow(dir) {
			found, checking = true, checking || fsck
		}
	}
	return found, checking
}

// checks reports whether a git process is an fsck.
func checks(p proc.Process) bool {
	args, _ := p.Args()
	return len(args) > 1 && slices.Contains(args[1:], "fsck")
}
