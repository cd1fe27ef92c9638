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

	"github.com/artifactfs/artifactfs/git/odb/named"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// These durations control how long Join waits before it removes old packs.
const (
	// graceMost is the longest time that Join waits for processes that may be reading old packs.
	graceMost = time.Minute
	// graceCrowded replaces graceMost if there are more packs than JoinOptions.Crowd.
	graceCrowded = time.Second
	// graceYoung is the age below which any git process is assumed to have listed the pack directory, even if the process
	// has not mapped a file of the directory yet. The time is short, because most git processes work in other repositories
	// of this host. If an older git process does not find an old pack, it lists the directory again and finds the new
	// pack.
	graceYoung = 500 * time.Millisecond
	// gracePoll and gracePollMost are the shortest and the longest pause between two checks of the running processes.
	gracePoll, gracePollMost = 10 * time.Millisecond, time.Second
)

// retire removes those packs in old that still exist. All their objects are in other packs: in the packs left, or in
// the joined pack at the path joined, unless joined is "". First retire waits for the processes that may have listed
// the packs before the joined pack existed. Then it checks that the packs that contain the objects still exist. It
// returns the number of removed packs.
func (s *Store) retire(ctx context.Context, old, left []candidate, joined string,
	o JoinOptions) (removed int, err error) {
	if err := s.awaitReaders(ctx, time.Now(), o); err != nil {
		return 0, err
	}
	if joined != "" {
		p := &pack{path: filepath.Join(s.dir, joined), format: s.format, number: s.serial.Add(1), foreign: s.foreign}
		if err := p.open(); err != nil {
			return 0, err
		}
		defer p.close()
		left = append([]candidate{{pack: p, idx: p.files.Load().idx}}, left...)
	}
	for _, c := range left {
		if !whole(c.path) {
			return 0, errOvertaken // git has repacked, and git removes the old packs itself
		}
	}
	var gone []string
	for _, c := range old {
		// After the packs were joined, git may have created a .keep file to protect the old pack, or may have removed packs
		// in left.
		if _, err := os.Lstat(c.path + ".keep"); err == nil || !contained(c.idx, left) {
			continue
		}
		gone = append(gone, c.path)
	}
	return len(gone), removePacks(s.dir, gone)
}

// removePacks removes packs: first their indexes, then their other files. The directory is synced between the two
// steps, so that even after a power failure no process finds an indexed pack without its promisor mark.
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
			os.Remove(named.Path(path)) // Ignore the error: package namedset removes the file later.
		}
		if err := disk.OS.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// orphanAge is the age from which a pack without an index is treated as the rest of an interrupted removal. The index
// of a pack that is being created appears much earlier.
const orphanAge = time.Hour

// removeOrphans removes packs whose removal was interrupted after their index was removed, and promisor marks of packs
// that were never completed.
func removeOrphans(dir string, now time.Time) error {
	marks, err := disk.Glob(dir, "pack-*.promisor")
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
		// The pack may be an old file that was renamed a moment ago. A rename updates the change time of the inode but not
		// the modification time, so compare the change time.
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

// changeTime returns the change time (ctime) of a file.
func changeTime(st fs.FileInfo) time.Time {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return time.Unix(s.Ctim.Unix())
	}
	return st.ModTime()
}

// dropMultiIndex removes the multi-pack indexes if one of them names a pack in paths, as git does before it removes
// packs. No information is lost, because each pack has its own index.
func dropMultiIndex(dir string, paths []string) error {
	for _, pattern := range []string{"multi-pack-index", "multi-pack-index.d/*.midx"} {
		found, err := disk.Glob(dir, pattern)
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

// namesAny reports whether the multi-pack index in the file multi contains the name of a pack in paths.
func namesAny(multi string, paths []string) (bool, error) {
	data, err := disk.ReadRegular(multi, disk.LargeFile)
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

// removeMultiIndex removes all files of multi-pack indexes. The first file that it removes is the file that git reads
// first: the index or, for a chain of indexes, the file that lists the chain.
func removeMultiIndex(dir string) error {
	for _, pattern := range []string{"multi-pack-index", "multi-pack-index.d/multi-pack-index-chain",
		"multi-pack-index-*.rev",
		"multi-pack-index-*.bitmap", "multi-pack-index.d/multi-pack-index-*"} {
		found, err := disk.Glob(dir, pattern)
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

// tidyingMost is the age from which a lock file is assumed to have been left behind by a process that has died.
const tidyingMost = time.Hour

// tidying reports whether git is repacking the repository with the directory objects, or is writing a multi-pack index
// for it.
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
	text, err := disk.ReadRegular(name, disk.SmallFile)
	if err != nil {
		return false
	}
	// gc.pid contains "PID HOST". A process of another host cannot be checked, so it is assumed to be running.
	pid, host, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	n, err := strconv.Atoi(pid)
	if here, _ := os.Hostname(); err != nil || n <= 0 || host != here {
		return err == nil && n > 0
	}
	return syscall.Kill(n, 0) != syscall.ESRCH
}

// awaitReaders waits until every process has ended that may have listed the pack directory before the time in the
// parameter since. It also waits for every running fsck, because fsck reports packs that are removed while it runs,
// even if other packs contain the objects. It waits at most graceMost, or graceCrowded if there are more packs than
// o.Crowd and no fsck is running.
func (s *Store) awaitReaders(ctx context.Context, since time.Time, o JoinOptions) error {
	for pause := gracePoll; ; pause = min(2*pause, gracePollMost) {
		found, checking := readers(s.dir, since, o.Reader)
		most := graceMost
		if packs, err := ListPacks(s.dir); err == nil && len(packs) > o.Crowd && !checking {
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

// readers reports whether a process other than this one may be using packs in dir that the process found before the
// time in the parameter since. Such a process has mapped some of the packs, as git maps indexes, or is a git process
// that started a moment ago. The mappings of other users' processes may be unreadable, so for these processes only the
// start time is examined. Processes for which the function spared returns true are ignored. The result checking is true
// if a process is running fsck; such a process counts even if it started after that time.
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
		// The start time of a process is rounded down to a clock tick, so add one tick to the age.
		if now.Sub(since) >= age+proc.Tick && !fsck || spared != nil && spared(pid) {
			continue
		}
		if isGit && age < graceYoung || p.MapsBelow(dir) {
			found, checking = true, checking || fsck
		}
	}
	return found, checking
}

// checks reports whether a git process is running fsck.
func checks(p proc.Process) bool {
	args, _ := p.Args()
	return len(args) > 1 && slices.Contains(args[1:], "fsck")
}
