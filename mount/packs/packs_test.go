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
		t.Error("a directory that is not there")
	}
	if err := os.Mkdir(d.path, 0o755); err != nil {
		t.Fatal(err)
	}
	if !d.look(now) {
		t.Error("not when it is new")
	}
	d.done(nil, now)
	if d.look(now.Add(time.Second)) {
		t.Error("again without a change")
	}
	touch := func(at time.Time) {
		if err := os.Chtimes(d.path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	touch(now.Add(time.Hour))
	if !d.look(now.Add(2 * time.Second)) {
		t.Error("not after a change")
	}
	d.done(errors.New("full"), now.Add(2*time.Second))
	touch(now.Add(2 * time.Hour))
	if d.look(now.Add(3 * time.Second)) {
		t.Error("at once after a failure")
	}
	if !d.look(now.Add(time.Minute)) {
		t.Error("never after a failure")
	}
	d.done(nil, now.Add(time.Minute))
	if !d.look(now.Add(2 * time.Minute)) {
		t.Error("never again without a change")
	}
}

func TestSameProgram(t *testing.T) {
	if !sameProgram(os.Getpid()) || sameProgram(os.Getppid()) && os.Getppid() == 1 {
		t.Error("programs are told apart wrongly")
	}
}
