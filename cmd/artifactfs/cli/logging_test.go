package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

func TestJournalGetsPriorities(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "stream"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", st.Dev, st.Ino))
	a := &App{Stderr: f, LogFormat: "console"}
	log, end, err := a.NewLog(zapcore.DebugLevel)
	if err != nil {
		t.Fatal(err)
	}
	log.With(zap.String("dir", "/d")).Info("one", zap.Int("n", 1))
	log.Debug("two\nlines")
	log.Warn("three")
	log.Error("four")
	end()
	text, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	want := "<6>one {\"dir\": \"/d\", \"n\": 1}\n<7>two\n<7>lines\n<4>three\n<3>four\n"
	if string(text) != want {
		t.Errorf("lines in the journal:\n%swant\n%s", text, want)
	}
}

func TestJournalIsTheOneOfThisStream(t *testing.T) {
	for _, variable := range []string{"", "1:2", "x"} {
		if isJournal(os.Stderr, variable) {
			t.Errorf("JOURNAL_STREAM=%s is taken for the stream of this process", variable)
		}
	}
}

// Two logs act as two processes: neither loses a line, and neither continues to write to a file that was rotated.
func TestLogFilesArePutAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log", "daemon.log")
	const writers, lines = 2, 500
	var wg sync.WaitGroup
	for w := range writers {
		f, err := openLogFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.close()
		f.size = 30_000
		wg.Go(func() {
			for n := range lines {
				if _, err := fmt.Fprintf(f, "writer %d line %04d %s\n", w, n, strings.Repeat("x", 75)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var all []byte
	for _, name := range []string{path + ".3", path + ".2", path + ".1", path} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > 30_000+2*100 {
			t.Errorf("file %s has %d bytes", name, len(text))
		}
		all = append(all, text...)
	}
	if n := bytes.Count(all, []byte("\n")); n != writers*lines {
		t.Errorf("got %d of %d lines", n, writers*lines)
	}
	if left, _ := filepath.Glob(path + ".4"); len(left) > 0 {
		t.Errorf("too many rotated files are kept: %v", left)
	}
}
