package running_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/server/running"
)

func TestServer(t *testing.T) {
	dir := t.TempDir()
	if _, err := running.Read(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a server: got %v, want ErrNotExist", err)
	}
	want := running.Server{URL: "http://127.0.0.1:1", Listen: "127.0.0.1:1", TokenFile: "/t", PID: 1 << 30}
	if err := want.Write(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := running.Read(dir); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if found, err := running.Stop(t.Context(), dir); found || err != nil {
		t.Errorf("stop of a server that has never locked: got %v, %v", found, err)
	}
	unlock, err := disk.TryLock(running.Lock(dir))
	if err != nil {
		t.Fatal(err)
	}
	// The process of the description does not exist.
	if found, err := running.Stop(t.Context(), dir); found || err == nil {
		t.Errorf("stop of a server whose process is unknown: got %v, %v, want an error", found, err)
	}
	unlock()
	if found, err := running.Stop(t.Context(), dir); found || err != nil {
		t.Errorf("stop of a server that has ended: got %v, %v", found, err)
	}
}

func TestReadToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	for text, want := range map[string]string{" art_1 \n": "art_1", "": "", "\n": "", "a\nb\n": "", "a\x00b": ""} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := running.ReadToken(file)
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("token in %q: got %q, %v, want %q", text, got, err, want)
		}
	}
}
