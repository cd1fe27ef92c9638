package packs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestTendedDirectoriesAreLookedIntoWhenTheyChange(t *testing.T) {
	dir := t.TempDir()
	d := &Directory{path: filepath.Join(dir, "pack")}
	now := time.Now()
	if d.look(now) {
		t.Error("a missing directory counts as changed")
	}
	if err := os.Mkdir(d.path, 0o755); err != nil {
		t.Fatal(err)
	}
	if !d.look(now) {
		t.Error("packs of a new directory are not joined")
	}
	d.done(nil, now)
	if d.look(now.Add(time.Second)) {
		t.Error("packs are joined again without a change")
	}
	touch := func(at time.Time) {
		if err := os.Chtimes(d.path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	touch(now.Add(time.Hour))
	if !d.look(now.Add(2 * time.Second)) {
		t.Error("packs are not joined after a change")
	}
	d.done(errors.New("full"), now.Add(2*time.Second))
	touch(now.Add(2 * time.Hour))
	if d.look(now.Add(3 * time.Second)) {
		t.Error("packs are joined again immediately after a failure")
	}
	if !d.look(now.Add(time.Minute)) {
		t.Error("packs are never joined again after a failure")
	}
	d.done(nil, now.Add(time.Minute))
	if !d.look(now.Add(2 * time.Minute)) {
		t.Error("packs are not looked at again a minute after they were joined")
	}
}

func TestSameProgram(t *testing.T) {
	if !sameProgram(os.Getpid()) || sameProgram(os.Getppid()) && os.Getppid() == 1 {
		t.Error("programs are told apart wrongly")
	}
}
