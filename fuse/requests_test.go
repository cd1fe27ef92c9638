package fuse

import (
	"fmt"
	"os"
	"testing"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

type counts map[string]uint64

// The number of requests of an operation determines the speed of the mount. FLUSH and LSEEK are sent once in the life
// of a mount.
func TestRequests(t *testing.T) {
	files := map[string]worktreetest.File{
		"link":    {Mode: object.ModeSymlink, Data: "dir0/file00"},
		"run":     {Mode: object.ModeExec, Data: "#!/bin/sh\n"},
		"large":   {Data: string(make([]byte, 100<<10))},
		"sub/a/b": {},
	}
	for i := range 100 {
		files[fmt.Sprintf("dir%d/file%02d", i%4, i)] = worktreetest.File{Data: fmt.Sprint("content ", i)}
	}
	undisturbed(t, func() []error { return countRequests(t, mount(t, files)) })
}

func countRequests(t *testing.T, m *mounted) (errs []error) {
	const unknown, known = false, true
	for _, c := range []struct {
		command string
		sizes   bool // whether the source knows all sizes
		want    counts
	}{
		{"true", unknown, counts{}},
		{"stat .", unknown, counts{}}, // the kernel looked up the root when it was mounted
		{"ls -R", unknown, counts{"OPENDIR": 1, "READDIRPLUS": 14}},
		{"ls -R", unknown, counts{}},
		{"stat dir0/file00", unknown, counts{"LOOKUP": 1}},
		{"stat dir0/file00", unknown, counts{}},
		{"cat dir0/file00", unknown, counts{"OPEN": 1, "READ": 1, "FLUSH": 1}},
		{"cat dir0/file00", unknown, counts{}},
		{"cat dir0/file04", unknown, counts{"LOOKUP": 1, "READ": 1}},
		{"test -e none", unknown, counts{"LOOKUP": 1}},
		{"test -e none", unknown, counts{}},
		{"test -e dir0/none/deeper", unknown, counts{"LOOKUP": 1}},
		{"readlink link", unknown, counts{"LOOKUP": 1, "READLINK": 1}},
		{"readlink link", unknown, counts{}},
		{"cat link", unknown, counts{}},
		{"ls -l dir1", unknown, counts{"LOOKUP": 25}},
		{"ls -l dir1", unknown, counts{}},
		{"test -x run", unknown, counts{"LOOKUP": 1}},
		{"test -w run", unknown, counts{}},
		{"df . >/dev/null", unknown, counts{"STATFS": 1}},
		{"find . -size +100k", known, counts{"READDIRPLUS": 14}},
		{"find . -size +100k", known, counts{}},
		{"cat dir2/*", known, counts{"READ": 25}},
		// an empty file is not read; one LSEEK looks for holes
		{"grep -r nothing .", known, counts{"READ": 75 + 2, "LSEEK": 1}},
		{"grep -r nothing .", known, counts{}},
		{"du -s .", known, counts{}},
		{"tar cf - . >/dev/null", known, counts{"READLINK": 1}},
		{"tar cf - . >/dev/null", known, counts{}},
	} {
		if m.src.KnowsSizes.Load() != c.sizes {
			m.src.KnowsSizes.Store(c.sizes)
			dropCaches(t)
			m.requests(func() { m.run("stat", ".") })
		}
		got := m.requests(func() { m.run("sh", "-c", c.command+"; true") })
		if fmt.Sprint(got) != fmt.Sprint(map[string]uint64(c.want)) {
			errs = append(errs, fmt.Errorf("%s (sizes known: %v): %v, want %v", c.command, c.sizes, got, c.want))
		}
	}
	if n := m.src.Calls("Tree"); n != 7 {
		errs = append(errs, fmt.Errorf("%d trees were requested, want 7", n))
	}
	return errs
}

// A listing requests no size and waits for none.
func TestListingAsksNoSize(t *testing.T) {
	files := make(map[string]worktreetest.File)
	for i := range 50 {
		files[fmt.Sprintf("d%d/f%d", i%5, i)] = worktreetest.File{Data: "x"}
	}
	m := mount(t, files)
	never := make(chan struct{})
	for path := range files {
		m.src.Rule(path, worktreetest.Rule{Block: never})
	}
	m.run("ls", "-R")
	m.run("find", ".", "-type", "f", "-name", "f1*")
	if n := m.src.Calls("Size") + m.src.Calls("Open"); n != 0 {
		t.Errorf("listing requested %d sizes and contents", n)
	}
	for path := range files {
		m.src.Rule(path, worktreetest.Rule{})
	}
	if st, err := os.Stat(m.path("d1/f1")); err != nil || st.Size() != 1 {
		t.Errorf("stat after the listing: %v", err)
	}
}

// A kernel without the capability for ENOSYS on open gets an answer with the same cache flags.
func TestOldKernel(t *testing.T) {
	var f fileSystem
	var file, dir raw.OpenOut
	if st := f.Open(nil, &raw.OpenIn{}, &file); st != raw.OK || file.OpenFlags != raw.FOPEN_KEEP_CACHE {
		t.Errorf("open: got status %v, flags %x", st, file.OpenFlags)
	}
	if st := f.OpenDir(nil, &raw.OpenIn{}, &dir); st != raw.OK ||
		dir.OpenFlags != raw.FOPEN_KEEP_CACHE|raw.FOPEN_CACHE_DIR {
		t.Errorf("opendir: got status %v, flags %x", st, dir.OpenFlags)
	}
}
