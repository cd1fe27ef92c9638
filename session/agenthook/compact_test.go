package agenthook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/session/transcript"
)

// texts reads the texts of an agent from a file, and returns them with the result of ReadTexts.
func texts(t *testing.T, a Agent, file string, from int64) ([]record, Texts) {
	t.Helper()
	s, err := ReadTexts(Event{Agent: a, Kind: Compact, Session: "c", File: file}, from)
	if err != nil {
		t.Fatalf("read texts of %s: %v", a, err)
	}
	var texts []record
	for _, line := range s.Lines {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("record of a text: %v: %s", err, line)
		}
		if r.Type != "message" || r.Role != "assistant" || !r.Compacted || r.Session != "c" || r.Agent != a {
			t.Errorf("got record %s", line)
		}
		texts = append(texts, r)
	}
	if transcript.HasPrompt(s.Lines) {
		t.Errorf("the texts of %s begin a turn", a)
	}
	return texts, s
}

// Of an agent's file, the texts since the latest compaction are kept, without thoughts and without secrets.
func TestReadTexts(t *testing.T) {
	secret := "ghp_" + strings.Repeat("aB3d", 9)
	for _, a := range []Agent{Claude, Codex} {
		text, err := os.ReadFile(filepath.Join("testdata", string(a)+"-file.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.ReplaceAll(text, []byte("SECRET"), []byte(secret))
		file := filepath.Join(t.TempDir(), "c.jsonl")
		write := func(text []byte) {
			t.Helper()
			if err := os.WriteFile(file, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(text[:len(text)-1]) // the agent is still writing the last line
		first, s := texts(t, a, file, 0)
		if len(first) != 1 || !strings.HasPrefix(first[0].Text, "I look at the login first; the key is ") ||
			strings.Contains(first[0].Text, secret[4:]) || first[0].Time != "2026-11-01T10:00:03Z" {
			t.Errorf("texts of %s: got %+v", a, first)
		}
		write(text)
		second, s := texts(t, a, file, s.End)
		if len(second) != 1 || second[0].Text != "The test é fails.\nI fix it." || s.End != int64(len(text)) {
			t.Errorf("further texts of %s: got %+v, until %d", a, second, s.End)
		}
		if again, _ := texts(t, a, file, s.End); len(again) != 0 {
			t.Errorf("texts of %s that were read already: got %+v", a, again)
		}
		if all, _ := texts(t, a, file, s.End+1); len(all) != 2 {
			t.Errorf("texts of %s in another file: got %+v", a, all)
		}
	}
	dir := t.TempDir()
	if texts, s := texts(t, Claude, filepath.Join(dir, "missing.jsonl"), 7); texts != nil || s.End != 0 {
		t.Errorf("texts in a missing file: got %+v", texts)
	}
	pipe := filepath.Join(dir, "pipe.jsonl")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{pipe, filepath.Join(dir, "key.pem"), dir} {
		if s, err := ReadTexts(Event{Agent: Codex, File: file}, 0); err == nil {
			t.Errorf("texts in %s: got %+v, want an error", file, s)
		}
	}
}

// The size of the texts has a limit, and a large file takes less time than a hook has.
func TestReadTextsIsBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.jsonl")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write := func(format string, args ...any) {
		t.Helper()
		if _, err := fmt.Fprintf(f, format+"\n", args...); err != nil {
			t.Fatal(err)
		}
	}
	text := func(text string) {
		t.Helper()
		write(`{"timestamp":"%s","type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"%s"}]}}`,
			strings.Repeat("2", 100), text)
	}
	text("before the compaction")
	write(`{"timestamp":"2026-11-01T10:00:00Z","type":"compacted","payload":{"message":"%s"}}`,
		strings.Repeat("x", maxFileLine))
	for range 45 {
		write(`{"type":"user","message":{"role":"user","content":"%s"}}`, strings.Repeat("assistant ", 100<<10))
	}
	for i := range 100 {
		text(fmt.Sprintf("%03d", i) + strings.Repeat("x", 20<<10))
	}
	text(strings.Repeat("y", 2*maxString))
	began := time.Now()
	texts, s := texts(t, Claude, file, 0)
	if took := time.Since(began); took > Timeout {
		t.Errorf("a file of 50 MiB took %v", took)
	}
	size := 0
	for _, r := range texts {
		size += len(r.Text)
	}
	last := texts[len(texts)-1].Text
	if size > maxKept || size < maxKept-32<<10 || s.Left+len(texts) != 101 || len(last) > maxString || last[0] != 'y' {
		t.Errorf("got %d texts with %d bytes, %d left out, the last one has %d bytes", len(texts), size, s.Left, len(last))
	}
	if got, want := texts[0].Text[:3], fmt.Sprintf("%03d", s.Left); got != want {
		t.Errorf("oldest text: got %s, want %s", got, want)
	}
	if got := texts[0].Time; len(got) > maxTime {
		t.Errorf("time of a text: got %s", got)
	}
	// A compaction that was interrupted continues with the first text that was not recorded.
	rest, err := ReadTexts(Event{Agent: Claude, Kind: Compact, Session: "c", File: file}, s.Starts[5])
	if err != nil || !slices.Equal(rest.Lines, s.Lines[5:]) || rest.Left != 0 || rest.End != s.End {
		t.Errorf("texts from the sixth one: got %d of %d, %d left out, error %v", len(rest.Lines), len(s.Lines), rest.Left,
			err)
	}
}
