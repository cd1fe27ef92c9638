package overlay

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestLogCutAtEveryByte cuts the log after a power loss at every byte of its tail. The tree must be the state of one
// moment, and with a longer log a later moment or the same.
func TestLogCutAtEveryByte(t *testing.T) {
	w := newWorld(t, filepath.Join(t.TempDir(), "overlay"), Options{})
	w.o.pause, w.o.quiet = time.Hour, time.Hour
	w.mustOpen()
	w.must(w.create("first"))
	w.must(w.l.Sync())
	from := w.l.wal.Size()
	moments := []map[string]Node{w.namespace()}
	for _, do := range []func() error{
		func() error { return w.create("second") },
		func() error { return w.rename("first", "renamed") },
		func() error { return w.remove("base2") },
		func() error { return w.rename("base3", "second") },
		func() error { return w.create("third") },
	} {
		w.must(do())
		moments = append(moments, w.namespace())
	}
	to := w.l.wal.Size()
	w.kill()
	log, err := os.ReadFile(filepath.Join(w.dir, "log"))
	w.must(err)
	reached := 0
	for cut := from; cut <= to; cut++ {
		dir := filepath.Join(t.TempDir(), "overlay")
		w.must(os.CopyFS(dir, os.DirFS(w.dir)))
		torn := append([]byte(nil), log...)
		clear(torn[cut:])
		w.must(os.WriteFile(filepath.Join(dir, "log"), torn, 0o600))
		v := newWorld(t, dir, Options{boot: "boot-2"})
		v.mustOpen()
		now := map[string]Node{}
		for _, name := range []string{"first", "second", "renamed", "third", "base2", "base3", "base4", "base5",
			"base6", "base7"} {
			m, ok, err := v.look(name)
			v.must(err)
			if ok {
				now[name] = m.node
			}
		}
		at := -1
		for i, m := range moments {
			if maps.Equal(m, now) {
				at = i
			}
		}
		if at < reached || at > reached+1 {
			t.Fatalf("log of %d bytes: got the state of moment %d, earlier than %d: %v", cut, at, reached, now)
		}
		reached = at
		v.mustClose()
		if cut%8 == 0 {
			v.sound()
		}
	}
	if reached != len(moments)-1 {
		t.Errorf("the whole log: got the state of moment %d, want %d", reached, len(moments)-1)
	}
}
