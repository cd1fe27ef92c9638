package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const perDirectory = 1000 // number of small files in each directory

func (a *arena) file(dir string, i int) string {
	return filepath.Join(dir, "many", fmt.Sprintf("d%03d", i/perDirectory), fmt.Sprintf("f%06d", i))
}

func (a *arena) directories(dir string, files int) error {
	for i := 0; i < files; i += perDirectory {
		if err := os.MkdirAll(filepath.Dir(a.file(dir, i)), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// create creates the given number of files with as few system calls as a C program would use.
func (a *arena) create(dir string, files, size int) error {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i)
	}
	for i := range files {
		fd, err := unix.Open(a.file(dir, i), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return err
		}
		if _, err := unix.Write(fd, data); err != nil {
			return err
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	return nil
}

func removeMany(dir string) error { return shellIn(dir, "rm -rf many") }

// dropCaches empties the kernel's caches, so that the next operations reach the file systems. The argument is ignored.
func dropCaches(string) error {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

func walk(dir string) error {
	return filepath.WalkDir(filepath.Join(dir, "many"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		return unix.Lstat(path, &st)
	})
}

func readTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == ".git" {
			return fs.SkipDir
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		_, err = os.ReadFile(path)
		return err
	})
}

func (a *arena) smallFiles() error {
	n := a.o.files
	name := func(what string) string { return fmt.Sprintf("%s %d files of 4 KiB", what, n) }
	fresh := func(dir string) error { return errors.Join(removeMany(dir), a.directories(dir, n)) }
	full := func(dir string) error {
		if err := fresh(dir); err != nil {
			return err
		}
		return a.create(dir, n, 4096)
	}
	renames := 0
	return errors.Join(
		a.compare(name("create"), a.o.rounds, fresh, func(dir string) error { return a.create(dir, n, 4096) }),
		a.compare("walk + lstat, warm", a.o.rounds, walk, walk),
		a.compare("walk + lstat, caches dropped", 1, dropCaches, walk),
		a.compare(name("read, warm"), a.o.rounds, nil,
			func(dir string) error { return readTree(filepath.Join(dir, "many")) }),
		a.compare(name("read, caches dropped"), 1, dropCaches,
			func(dir string) error { return readTree(filepath.Join(dir, "many")) }),
		a.compare(name("overwrite (O_TRUNC)"), a.o.rounds, nil, func(dir string) error {
			for i := range n {
				if err := os.WriteFile(a.file(dir, i), make([]byte, 4096), 0o644); err != nil {
					return err
				}
			}
			return nil
		}),
		a.compare(fmt.Sprintf("rename %d files", n), a.o.rounds*2, func(string) error { renames++; return nil },
			func(dir string) error {
				for i := range n {
					from, to := a.file(dir, i), a.file(dir, i)+".renamed"
					if (renames-1)/2%2 == 1 { // each file is renamed and then renamed back
						from, to = to, from
					}
					if err := unix.Rename(from, to); err != nil { // os.Rename would also call lstat for the target
						return err
					}
				}
				return nil
			}),
		a.compare(name("rm -rf"), a.o.rounds, full, removeMany),
		a.compare("create, write, fsync, rename over, 1000 times", 1, fresh, func(dir string) error {
			for i := range 1000 {
				if err := replaceSafely(a.file(dir, i%10)); err != nil {
					return err
				}
			}
			return nil
		}),
	)
}

// replaceSafely replaces a file as editors and databases do: it writes a new file, syncs it and renames it to path.
func replaceSafely(path string) error {
	f, err := os.Create(path + ".tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 4096))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// largeFile measures writes to a large file: first sequential writes, and then writes at random offsets.
func (a *arena) largeFile() error {
	chunk := make([]byte, 1<<20)
	for i := range chunk {
		chunk[i] = byte(rand.Uint32())
	}
	write := func(sync bool) func(dir string) error {
		return func(dir string) error {
			f, err := os.Create(filepath.Join(dir, "large"))
			if err != nil {
				return err
			}
			for at := int64(0); at < a.o.large && err == nil; at += int64(len(chunk)) {
				_, err = f.Write(chunk)
			}
			if sync && err == nil {
				err = f.Sync()
			}
			return errors.Join(err, f.Close())
		}
	}
	random := func(sync bool) func(dir string) error {
		return func(dir string) error {
			f, err := os.OpenFile(filepath.Join(dir, "large"), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			rnd := rand.New(rand.NewPCG(1, 2))
			for range a.o.random {
				if _, err := f.WriteAt(chunk[:4096], rnd.Int64N(a.o.large/4096)*4096); err != nil {
					return err
				}
			}
			if sync {
				err = f.Sync()
			}
			return errors.Join(err, f.Close())
		}
	}
	gone := func(dir string) error { return shellIn(dir, "rm -f large") }
	size := fmt.Sprintf("%d MiB", a.o.large>>20)
	return errors.Join(
		a.compare("write "+size+" in order", 1, gone, write(false)),
		a.compare("write "+size+" in order, fsync", 1, gone, write(true)),
		a.compare("read "+size+", caches dropped", 1, dropCaches,
			func(dir string) error { return shellIn(dir, "cat large >/dev/null") }),
		a.compare(fmt.Sprintf("%d random writes of 4 KiB", a.o.random), 1, nil, random(false)),
		a.compare(fmt.Sprintf("%d random writes of 4 KiB, fsync", a.o.random), 1, nil, random(true)),
		a.compare("rm of it", 1, nil, gone),
	)
}

// memory creates very many files, and measures the daemon's memory before and after. Then it measures how long mounting
// takes after an unmount, and after the daemon was killed.
func (a *arena) memory() error {
	n := a.o.memory
	if n == 0 {
		return nil
	}
	weigh := func(what string) (int64, error) {
		rss, err := residentBytes(a.m.pid)
		a.note(what, fmt.Sprintf("%.1f MiB resident", float64(rss)/(1<<20)))
		return rss, err
	}
	before, err := weigh("daemon with nothing changed")
	if err != nil {
		return err
	}
	if err := a.directories(a.m.dir, n); err != nil {
		return err
	}
	start := time.Now()
	if err := a.create(a.m.dir, n, 1); err != nil {
		return err
	}
	a.note(fmt.Sprintf("create %d files", n), seconds(time.Since(start)))
	after, err := weigh("daemon at once")
	if err != nil {
		return err
	}
	a.note("memory of a new file", fmt.Sprintf("%.0f bytes", float64(after-before)/float64(n)))
	if err := dropCaches(""); err != nil { // makes the kernel release the inodes of the mount
		return err
	}
	if _, err := weigh("daemon after caches were dropped"); err != nil {
		return err
	}
	start = time.Now()
	if err := a.m.quietly("unmount", a.m.dir); err != nil {
		return err
	}
	a.note("unmount", seconds(time.Since(start)))
	for _, how := range []string{"unmounting", "a kill"} {
		if how == "a kill" {
			unix.Sync()
			pid := a.m.pid
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				return err
			}
			// wait(2) is impossible, because the process is not a child of this process
			for syscall.Kill(pid, 0) == nil {
				time.Sleep(time.Millisecond)
			}
		}
		took, err := a.m.again()
		if err != nil {
			return err
		}
		a.note("mount again after "+how, seconds(took))
		rss, err := weigh("daemon")
		if err != nil {
			return err
		}
		a.note("memory of a file", fmt.Sprintf("%.0f bytes", float64(rss-before)/float64(n)))
		start = time.Now()
		if err := walk(a.m.dir); err != nil {
			return err
		}
		a.note("walk + lstat of all", seconds(time.Since(start)))
	}
	start = time.Now()
	if err := removeMany(a.m.dir); err != nil {
		return err
	}
	a.note("rm -rf of all", seconds(time.Since(start)))
	return nil
}
