package odb

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
)

func TestJoinLeavesOthersAlone(t *testing.T) {
	dir, want := promised(t, object.SHA1, 8)
	pack := filepath.Join(dir, "objects", "pack")
	names, err := joinable(pack)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	for i, change := range []func() error{
		func() error { return os.Remove(names[0] + ".promisor") },
		func() error { return os.WriteFile(names[1]+".keep", nil, 0o644) },
		func() error { return os.WriteFile(names[2]+".mtimes", nil, 0o644) },
	} {
		if err := change(); err != nil {
			t.Fatalf("make file %d beside the packs: %v", i, err)
		}
	}
	s := open(t, filepath.Join(dir, "objects"), object.SHA1)
	if res := joined(t, s, JoinOptions{Above: 2, Keep: 1, Crowd: 100}); res.Removed != 5 {
		t.Errorf("result of the join: got %+v", res)
	}
	for _, name := range names[:3] {
		if _, err := os.Stat(name + ".pack"); err != nil {
			t.Error(err)
		}
	}
	want.check(t, s)
}

// TestJoinUnderReaders checks that a Store that listed the packs before they were joined can read all objects, and
// lists the directory again if necessary.
func TestJoinUnderReaders(t *testing.T) {
	dir, want := promised(t, object.SHA1, 12)
	objects := filepath.Join(dir, "objects")
	s, slow, late := open(t, objects, object.SHA1), open(t, objects, object.SHA1), open(t, objects, object.SHA1)
	want.check(t, slow) // this opens all packs
	old := slow.acquire()
	ids := slices.Collect(maps.Keys(want))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, _, err := s.Get(ids[i%len(ids)], noLimit); err != nil || !s.Has(ids[i%len(ids)]) {
					t.Error(err)
					return
				}
			}
		})
	}
	joined(t, s, keepTwo)
	close(stop)
	wg.Wait()
	for _, id := range ids {
		if !late.Has(id) {
			t.Fatalf("object %s was not found by a Store that has not listed the directory again", id)
		}
		if !slices.ContainsFunc(old.packs, func(p source) bool { _, ok := p.find(id); return ok }) {
			t.Fatalf("object %s cannot be read by a Store with the old list of packs", id)
		}
	}
	slow.release(old)
	want.check(t, slow)
}

// TestJoinRemovesCopiedPacks checks that the next join recognizes the files of a killed one by their objects, and
// removes them.
func TestJoinRemovesCopiedPacks(t *testing.T) {
	dir, want := promised(t, object.SHA1, 8)
	pack := filepath.Join(dir, "objects", "pack")
	kept := t.TempDir()
	if err := os.CopyFS(kept, os.DirFS(pack)); err != nil {
		t.Fatal(err)
	}
	s := open(t, filepath.Join(dir, "objects"), object.SHA1)
	first := joined(t, s, JoinOptions{Above: 2, Keep: 1, Crowd: 100})
	for _, name := range must(filepath.Glob(filepath.Join(kept, "*"))) {
		if err := os.Rename(name, filepath.Join(pack, filepath.Base(name))); err != nil {
			t.Fatal(err)
		}
	}
	if res := joined(t, s, JoinOptions{Above: 2, Keep: 1, Crowd: 100}); res.Name != "" || res.Removed != 8 {
		t.Errorf("result of the join: got %+v", res)
	}
	if names := packsIn(t, dir); suffixed(names, ".pack") != 1 || !slices.Contains(names, first.Name+".pack") {
		t.Errorf("files after the join: got %v", names)
	}
	judged(t, dir, want)
}

func TestJoinKeepsOutOfTheWay(t *testing.T) {
	dir, _ := promised(t, object.SHA1, 6)
	objects := filepath.Join(dir, "objects")
	before := packsIn(t, dir)
	s := open(t, objects, object.SHA1)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"gc.pid": fmt.Sprintf("%d %s", os.Getpid(), host), "objects/maintenance.lock": "",
		"objects/pack/multi-pack-index.lock": "",
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if res := joined(t, s, keepTwo); res != (JoinResult{}) {
			t.Errorf("join with the lock %s: got %+v", name, res)
		}
		old := time.Now().Add(-2 * tidyingMost)
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
		if tidying(objects, time.Now()) {
			t.Errorf("lock %s is still respected after its expiry", name)
		}
		os.Remove(path)
	}
	// The pid is larger than the largest possible one.
	if err := os.WriteFile(filepath.Join(dir, "gc.pid"), []byte("4194305 "+host), 0o644); err != nil {
		t.Fatal(err)
	}
	if tidying(objects, time.Now()) {
		t.Error("a gc.pid of a dead process is respected")
	}
	unlock, err := disk.Lock(filepath.Join(objects, "info", "artifactfs-join.lock"))
	if err != nil {
		t.Fatal(err)
	}
	if res := joined(t, s, keepTwo); res != (JoinResult{}) {
		t.Errorf("join beside another join: got %+v", res)
	}
	unlock()
	ctx, cancel := context.WithCancel(context.Background())
	o := keepTwo
	pieces := 0
	o.Pace = func(context.Context) error {
		if pieces++; pieces == 8 {
			cancel()
		}
		return ctx.Err()
	}
	if _, err := s.Join(ctx, o); err == nil {
		t.Error("a cancelled join succeeded")
	}
	if after := packsIn(t, dir); !slices.Equal(before, after) {
		t.Errorf("a cancelled join changed the files: were %v, are %v", before, after)
	}
}

// TestJoinWaitsForRunningGit checks that old packs are kept for git processes that have opened them before the new pack
// existed.
func TestJoinWaitsForRunningGit(t *testing.T) {
	dir, want := promised(t, object.SHA1, 8)
	cmd := exec.Command("git", "-C", dir, "cat-file", "--batch")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	ask := func(id string) {
		fmt.Fprintln(in, id)
		var typ string
		var size int
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if n, err := fmt.Sscanf(line, id+" %s %d", &typ, &size); n != 2 {
			t.Fatalf("line %q of git cat-file: %v", line, err)
		}
		io.CopyN(io.Discard, r, int64(size)+1)
	}
	ask(slices.MinFunc(slices.Collect(maps.Keys(want)), object.ID.Compare).String())
	before := packsIn(t, dir)
	s := open(t, filepath.Join(dir, "objects"), object.SHA1)
	ended := make(chan JoinResult)
	go func() {
		res, err := s.Join(context.Background(), keepTwo)
		if err != nil {
			t.Error(err)
		}
		ended <- res
	}()
	for deadline := time.Now().Add(time.Minute); suffixed(packsIn(t, dir), ".idx") <= 8; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the join created no pack")
		}
	}
	for id := range want { // git can read all objects, although it has listed the packs at its start
		ask(id.String())
	}
	after := packsIn(t, dir)
	for _, name := range before {
		if !slices.Contains(after, name) {
			t.Errorf("pack %s was removed while git was running", name)
		}
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if res := <-ended; res.Removed < 6 {
		t.Errorf("result of the join: got %+v", res)
	}
	judged(t, dir, want)
}

// TestJoinDropsMultiPackIndex checks that a multi-pack-index is removed before the packs to which it refers.
func TestJoinDropsMultiPackIndex(t *testing.T) {
	dir, want := promised(t, object.SHA1, 8)
	git(t, dir, nil, "multi-pack-index", "write")
	s := open(t, filepath.Join(dir, "objects"), object.SHA1)
	joined(t, s, keepTwo)
	if names := packsIn(t, dir); slices.Contains(names, "multi-pack-index") {
		t.Errorf("files after the join: got %v", names)
	}
	judged(t, dir, want)
	git(t, dir, nil, "multi-pack-index", "write")
	if err := dropMultiIndex(s.dir, []string{filepath.Join(s.dir, "pack-other")}); err != nil {
		t.Fatal(err)
	}
	if names := packsIn(t, dir); !slices.Contains(names, "multi-pack-index") {
		t.Error("a multi-pack-index of other packs was removed")
	}
}
