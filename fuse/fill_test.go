package fuse

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// searched mounts files of these directories in which every process counts as a search program. files has the contents
// by path.
func searched(t *testing.T, dirs, each, size int) (m *mounted, files map[string][]byte) {
	t.Helper()
	all := map[string]worktreetest.File{"top": {Data: "in the root"}}
	files = map[string][]byte{}
	for d := range dirs {
		for i := range each {
			path := fmt.Sprintf("dir%d/sub%d/file%d", d/2, d%2, i)
			data := strings.Repeat(path+"\n", 1+(size+i)/(len(path)+1))
			all[path], files[path] = worktreetest.File{Data: data}, []byte(data)
		}
	}
	src := worktreetest.New(all)
	src.KnowsSizes.Store(true)
	src.Searches.Store(true)
	state := t.TempDir()
	o := Options{Objects: &fakeObjects{}, Hidden: ".git:artifactfs"}
	return mountTree(t, src, filepath.Join(state, "inodes"), filepath.Join(state, "overlay"), o), files
}

// TestSearchReadsWithoutRequests lists the root as a search program does, and waits until the contents of all files are
// in the page cache. Reading all files then sends no READ.
func TestSearchReadsWithoutRequests(t *testing.T) {
	m, files := searched(t, 20, 60, 5000)
	if _, err := os.ReadDir(m.dir); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "contents of all files are read for the page cache",
		func() bool { return m.src.Calls("Open") >= len(files) })
	before := m.Stats()["READ"]
	for path, want := range files {
		got, err := os.ReadFile(filepath.Join(m.dir, path))
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s: got %d bytes, %v, want %d", path, len(got), err, len(want))
		}
	}
	if n := m.Stats()["READ"] - before; n != 0 {
		t.Errorf("reading %d files sent %d READs, want 0", len(files), n)
	}
	// The helper's directory does not hold removed files for long: they are forgotten when its entries are dropped.
	for path := range files {
		if err := os.Remove(filepath.Join(m.dir, path)); err != nil {
			t.Fatal(err)
		}
	}
	await.Until(t, "removed files are forgotten", func() bool { return m.Stats()["FORGET"] >= uint64(len(files)) })
	if entries, err := os.ReadDir(filepath.Join(m.dir, ".git:artifactfs", fillName)); len(entries) > 0 {
		t.Errorf("directory of the helper: got %d entries, %v, want none", len(entries), err)
	}
}

// TestSearchKeepsChanges changes files by write(2) and in mappings, from another process, while their contents are
// stored in the page cache. No change may be lost.
func TestSearchKeepsChanges(t *testing.T) {
	if dir := os.Getenv("AFS_CHANGE_BELOW"); dir != "" {
		changeAll(t, dir)
		return
	}
	for round := range 10 {
		m, files := searched(t, 16, 25, 9000+round)
		child := exec.Command(os.Args[0], "-test.run=^TestSearchKeepsChanges$")
		child.Env = append(os.Environ(), "AFS_CHANGE_BELOW="+m.dir)
		var all sync.WaitGroup
		all.Go(func() {
			if out, err := child.CombinedOutput(); err != nil {
				t.Errorf("change files: %v\n%s", err, out)
			}
		})
		all.Go(func() {
			if _, err := os.ReadDir(m.dir); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		for path, data := range files {
			changeBytes(data, howTo(path))
			for _, from := range []string{"page cache", "tree"} {
				name := filepath.Join(m.dir, path)
				if from == "tree" {
					dropPages(t, name)
				}
				if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, data) {
					t.Fatalf("round %d: %s as read from the %s: a change is lost: %v", round, path, from, err)
				}
			}
		}
	}
}

// changeAll changes all files in the directories below dir, without listing the root.
func changeAll(t *testing.T, dir string) {
	var all sync.WaitGroup
	for d := range 8 {
		all.Go(func() {
			for s := range 2 {
				for i := range 25 {
					path := fmt.Sprintf("dir%d/sub%d/file%d", d, s, i)
					if err := changeFile(filepath.Join(dir, path), howTo(path)); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
}

// howTo returns how the file at path is changed: 0 by write(2), otherwise in a mapping.
func howTo(path string) int { return int(path[len(path)-1]) % 3 }

// changeBytes changes one byte of each page.
func changeBytes(data []byte, how int) {
	for at := how; at < len(data); at += 4096 {
		data[at] = 'X'
	}
}

// changeFile changes the bytes of a file that changeBytes changes.
func changeFile(name string, how int) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if how == 0 {
		for at := int64(0); at < info.Size(); at += 4096 {
			if _, err := f.WriteAt([]byte{'X'}, at); err != nil {
				return err
			}
		}
		return nil
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	changeBytes(mapped, how)
	return unix.Munmap(mapped)
}

// dropPages writes the pages of a file back, and drops them from the page cache.
func dropPages(t *testing.T, name string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}
