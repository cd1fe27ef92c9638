package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// each measures the same operation n times in the mount and in the plain directory, and prints a row with the medians.
// do performs the operation with the number i.
func (a *arena) each(what string, n int, do func(dir string, i int) error) error {
	var median [2]time.Duration
	var requests string
	for side, dir := range []string{a.plain, a.m.dir} {
		unix.Sync()
		if side == 1 {
			a.trace.begin()
		}
		took := make([]time.Duration, n)
		for i := range n {
			start := time.Now()
			if err := do(dir, i); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			took[i] = time.Since(start)
		}
		if side == 1 {
			requests = a.trace.end()
		}
		slices.Sort(took)
		median[side] = took[n/2]
	}
	micro := func(d time.Duration) string { return fmt.Sprintf("%.1f us", float64(d.Nanoseconds())/1000) }
	plain, mount := median[0], median[1]
	fmt.Fprintf(a.table, "%s\t%s\t%s\t%s\t%.2fx\t\t%s\n", what, a.place, micro(mount), micro(plain),
		float64(mount)/float64(plain), requests)
	return nil
}

// singles measures single operations on small files, with the system calls that a C program would use.
func (a *arena) singles() error {
	n := a.o.singles
	path := func(dir string, i int) string { return filepath.Join(dir, "single", fmt.Sprintf("f%06d", i)) }
	moved := func(dir string, i int) string { return path(dir, i) + ".moved" }
	data := make([]byte, 4096)
	var st unix.Stat_t
	stat := func(dir string, i int) error { return unix.Lstat(path(dir, i), &st) }
	create := func(dir string, i int) error { return write(path(dir, i), unix.O_CREAT|unix.O_EXCL, data) }
	read := func(dir string, i int) error {
		fd, err := unix.Open(path(dir, i), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_, err = unix.Read(fd, data)
		return errors.Join(unix.Fstat(fd, &st), err, unix.Close(fd))
	}
	for _, dir := range []string{a.plain, a.m.dir} {
		if err := unix.Mkdir(filepath.Join(dir, "single"), 0o755); err != nil {
			return err
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	return errors.Join(
		a.each("create + 4 KiB", n, create),
		a.each("stat after the write", n, stat),
		a.each("stat, warm", n, stat),
		a.each("open + read + fstat + close, first", n, read),
		a.each("open + read + fstat + close, warm", n, func(dir string, i int) error { return read(dir, i/2) }),
		a.each("overwrite 4 KiB (O_TRUNC)", n,
			func(dir string, i int) error { return write(path(dir, i), unix.O_TRUNC, data) }),
		a.each("write of 4 KiB into a file", n,
			func(dir string, _ int) error { return write(path(dir, rnd.IntN(n)), 0, data) }),
		a.each("rename", n, func(dir string, i int) error { return unix.Rename(path(dir, i), moved(dir, i)) }),
		a.each("unlink", n, func(dir string, i int) error { return unix.Unlink(moved(dir, i)) }),
		a.each("mkdir", n, func(dir string, i int) error { return unix.Mkdir(path(dir, i), 0o755) }),
		a.each("rmdir", n, func(dir string, i int) error { return unix.Rmdir(path(dir, i)) }),
	)
}

// write opens a file with O_WRONLY and the given flags, writes data at its start, and closes it.
func write(path string, flags int, data []byte) error {
	fd, err := unix.Open(path, flags|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, data)
	return errors.Join(err, unix.Close(fd))
}

// searches measures searches of the unchanged files of a repository. All contents are in the page cache.
func (a *arena) searches() error {
	var errs error
	for _, command := range []string{
		"rg -c unlikely-to-be-found >/dev/null; true",
		"grep -rc --exclude-dir=.git unlikely-to-be-found . >/dev/null; true",
		"find . -path ./.git -prune -o -size +1000000 >/dev/null",
		"git grep -c unlikely-to-be-found >/dev/null; true",
		"git status --porcelain >/dev/null",
	} {
		search := func(dir string) error { return shellIn(dir, command) }
		for _, dir := range []string{a.plain, a.m.dir, a.m.dir} {
			// these searches are not measured; after the first one, the kernel must request attributes that its reads
			// have invalidated
			if err := search(dir); err != nil {
				return err
			}
		}
		errs = errors.Join(errs, a.compare(a.name+": "+command, a.o.rounds*2+1, nil, search))
	}
	return errs
}
