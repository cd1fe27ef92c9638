package gitside

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// A fork whose remote does not answer starts, and its files have the time of the checkpoint.
func TestTimesNeedNoRemote(t *testing.T) {
	src := worktreetest.New(map[string]worktreetest.File{"a": {}, "dir/b": {}})
	src.Rule("dir", worktreetest.Rule{Err: syscall.EHOSTUNREACH})
	dir, at := t.TempDir(), time.Unix(1700000000, 0)
	tree, err := worktree.Open(filepath.Join(dir, "inodes"), src, worktree.Options{
		Root: src.Root, Time: at, Overlay: filepath.Join(dir, "overlay"),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	s := Side{Mount: &catalog.Mounted{}, Index: &Index{Tree: tree}, Log: zap.NewNop()}
	times := worktree.Times{Unchanged: at.Add(-time.Hour), Paths: []worktree.PathTimes{{Path: "a"}, {Path: "dir/b"}}}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.setTimes(ended, times); !errors.Is(err, context.Canceled) {
		t.Errorf("times for a request that has ended: got %v, want %v", err, context.Canceled)
	}
	if err := s.setTimes(t.Context(), times); err != nil {
		t.Errorf("times without a remote: %v", err)
	}
	if s.Note() == "" {
		t.Error("times without a remote: got no note")
	}
	for _, path := range []string{"", "a", "dir"} {
		n, err := tree.Resolve(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if a, err := tree.Attr(t.Context(), n); err != nil || a.Mtime != at.UnixNano() {
			t.Errorf("mtime of %q: got %d, %v, want %d", path, a.Mtime, err, at.UnixNano())
		}
	}
}

// A fork starts although the disk is full. Unchanged files have the time of the checkpoint, and a note states this.
func TestTimesOnAFullDisk(t *testing.T) {
	var full atomic.Bool
	fs := disktest.Faulty(disk.OS, func(op disktest.Op) error {
		if full.Load() {
			return syscall.ENOSPC
		}
		return nil
	})
	files := map[string]worktreetest.File{"unchanged": {}}
	times := worktree.Times{}
	for i := range 20_000 {
		at := fmt.Sprint("file", i)
		files[at] = worktreetest.File{}
		times.Paths = append(times.Paths, worktree.PathTimes{Path: at, Mtime: 1})
	}
	src := worktreetest.New(files)
	dir, at := t.TempDir(), time.Unix(1700000000, 0)
	times.Unchanged = at.Add(-time.Hour)
	tree, err := worktree.Open(filepath.Join(dir, "inodes"), src, worktree.Options{
		FS: fs, Root: src.Root, Time: at, Overlay: filepath.Join(dir, "overlay"),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	s := Side{Mount: &catalog.Mounted{}, Index: &Index{Tree: tree}, Log: zap.NewNop()}
	full.Store(true)
	if err := s.setTimes(t.Context(), times); err != nil {
		t.Errorf("times on a full disk: %v", err)
	}
	if !strings.Contains(s.Note(), "no space left on device") {
		t.Errorf("note about times on a full disk: got %q", s.Note())
	}
	full.Store(false)
	n, err := tree.Resolve(t.Context(), "unchanged")
	if err != nil {
		t.Fatal(err)
	}
	if a, err := tree.Attr(t.Context(), n); err != nil || a.Mtime != at.UnixNano() {
		t.Errorf("mtime of an unchanged file: got %d, %v, want %d", a.Mtime, err, at.UnixNano())
	}
}
