// Command meter uses the files of a volume continuously and records each operation, so that a test can count failures
// and find the times in which all operations failed. It runs in a container.
//
// It reads the files below the directory -dir whose names end with the SHA-256 hash of their contents, bypassing the
// page cache, and compares the contents with the hash. It also writes files below the directory "meter", syncs them,
// reads them again, and renames them, and it reads a file that it has opened at its start. For each operation, it
// appends a line to the file -log:
//
//	TIME DURATION OPERATION RESULT   TIME of the end in microseconds since 1970, DURATION in microseconds
//
// RESULT is "ok", "ok NAME SHA-256" for a file that was written, or the error.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	written = 16       // number of files that meter writes repeatedly
	largest = 32 << 10 // maximum size of such a file in bytes
)

func main() {
	dir := flag.String("dir", "/work", "`directory` of the volume")
	log := flag.String("log", "", "append the records to this `file`")
	pause := flag.Duration("pause", 250*time.Millisecond, "mean pause between two operations")
	flag.Parse()
	if err := run(*dir, *log, *pause); err != nil {
		fmt.Fprintln(os.Stderr, "meter:", err)
		os.Exit(1)
	}
}

func run(dir, log string, pause time.Duration) error {
	end := make(chan os.Signal, 1)
	// explicitly, because the first process of a container has no default action for signals
	signal.Notify(end, unix.SIGTERM, os.Interrupt)
	l, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer l.Close()
	files, err := list(dir)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return errors.New("list files of " + dir + ": no name ends with a hash")
	}
	if err := os.MkdirAll(filepath.Join(dir, "meter"), 0o755); err != nil {
		return err
	}
	held, err := os.Open(files[rand.IntN(len(files))])
	if err != nil {
		return err
	}
	defer held.Close()
	for {
		begun := time.Now()
		var operation, result string
		switch n := rand.IntN(10); {
		case n < 5:
			operation, err = "read", read(files[rand.IntN(len(files))])
		case n < 7:
			operation, err = "held", verify(held, held.Name())
		default:
			operation = "write"
			result, err = write(filepath.Join(dir, "meter"))
		}
		if err != nil {
			result = "error: " + err.Error()
		} else {
			result = strings.TrimSpace("ok " + result)
		}
		now := time.Now()
		if _, err := fmt.Fprintf(l, "%d %d %s %s\n", now.UnixMicro(), now.Sub(begun).Microseconds(), operation,
			result); err != nil {
			return err
		}
		select {
		case <-end:
			return nil
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

// list returns the files below a directory whose names end with a hash.
func list(dir string) (files []string, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && e.Name() == ".git" {
			return fs.SkipDir
		}
		if err == nil && e.Type().IsRegular() && len(hashOf(path)) == 2*sha256.Size {
			files = append(files, path)
		}
		return err
	})
	return files, err
}

// hashOf returns the part of a file's name after the last "-", which is a hash if the file is checked.
func hashOf(path string) string {
	name := filepath.Base(path)
	return name[strings.LastIndexByte(name, '-')+1:]
}

func read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return verify(f, path)
}

// verify reads an open file, bypassing the page cache, and compares its contents with the hash in its name.
func verify(f *os.File, path string) error {
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("fadvise %s: %w", path, err)
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, 1<<62)); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != hashOf(path) {
		return fmt.Errorf("read %s: contents have wrong hash %s", path, got)
	}
	return nil
}

// write writes and syncs a file, reads it again, and renames it. The result contains the name and the hash.
func write(dir string) (result string, err error) {
	data := make([]byte, 1+rand.IntN(largest))
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	f, err := os.CreateTemp(dir, ".new-")
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return "", err
	}
	if err := f.Sync(); err != nil {
		return "", err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return "", err
	}
	again, err := os.ReadFile(f.Name())
	if err != nil {
		return "", err
	}
	if !bytes.Equal(again, data) {
		return "", fmt.Errorf("read %s: contents differ: wrote %d bytes, read %d bytes", f.Name(), len(data), len(again))
	}
	name := fmt.Sprintf("f%02d", rand.IntN(written))
	if err := os.Rename(f.Name(), filepath.Join(dir, name)); err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return name + " " + hex.EncodeToString(sum[:]), nil
}
