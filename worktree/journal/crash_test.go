package journal

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// childLimit is so small that the file is rewritten often.
const childLimit = 4 << 10

// TestKill repeatedly kills a process that records changes and queries the journal, and checks that the answer for
// every position that the process was given contains all later changes.
func TestKill(t *testing.T) {
	if path := os.Getenv("JOURNAL_OF_CHILD"); path != "" {
		child(t, path)
		return
	}
	path := filepath.Join(t.TempDir(), "journal")
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	known := 0
	for round := range 25 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
		cmd.Env = append(os.Environ(), "JOURNAL_OF_CHILD="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var lines []string
		for s, stop := bufio.NewScanner(out), false; s.Scan(); {
			lines = append(lines, s.Text())
			if len(lines) == 20 && !stop {
				stop = true
				time.AfterFunc(time.Duration(rng.IntN(3000))*time.Microsecond, func() { cmd.Process.Kill() })
			}
		}
		cmd.Wait()
		j := open(t, path, Options{limit: childLimit})
		for i, line := range lines {
			token, ok := strings.CutPrefix(line, "token ")
			if !ok {
				continue
			}
			_, paths, ok := j.Since(token)
			if !ok {
				continue
			}
			known++
			for _, later := range lines[i:] {
				if changed, ok := strings.CutPrefix(later, "changed "); ok && !slices.Contains(paths, changed) {
					t.Fatalf("seed %d, round %d: changes since %s lack %s", seed, round, token, changed)
				}
			}
		}
		note(j, 0, "between")
		j.kill()
	}
	if known == 0 {
		t.Error("no journal position was known")
	}
}

// child records changes and queries the journal until it is killed. It prints each change after it was recorded, and
// each position that all changes printed before precede.
func child(t *testing.T, path string) {
	j := open(t, path, Options{limit: childLimit})
	for i := 0; ; i++ {
		name := fmt.Sprint("f", i%40)
		j.MakeRoom()
		var f Flight
		if !j.Covers(&f, uint64(i%40)+1) {
			j.Note(&f, uint64(i%40)+1, name)
		}
		os.Stdout.WriteString("changed " + name + "\n")
		j.Land(&f)
		if i%7 == 0 {
			token, _, _ := j.Since("")
			os.Stdout.WriteString("token " + token + "\n")
		}
	}
}

// If the last record was written only in part, the journal has all records before it.
func TestTorn(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "journal")
	j := open(t, path, Options{})
	note(j, 1, "whole")
	before := slices.Clone(j.log.memory[:j.log.size])
	end := j.log.end
	note(j, 2, "the record that is being written")
	after := slices.Clone(j.log.memory[:j.log.size])
	token := j.Start()
	j.kill()
	for written := end + 8; written <= len(after) && written < end+80; written++ {
		image := slices.Clone(before)
		copy(image[end+8:written], after[end+8:written]) // all but the word that makes the record valid
		if err := os.WriteFile(path, image, 0o600); err != nil {
			t.Fatal(err)
		}
		j := open(t, path, Options{})
		ask(t, j, token, "whole")
		note(j, 3, "next")
		ask(t, j, token, "whole next")
		j.kill()
	}
}

func FuzzOpen(f *testing.F) {
	path := filepath.Join(f.TempDir(), "journal")
	j := open(f, path, Options{})
	f.Add(slices.Clone(j.log.memory[:256]))
	note(j, 1, "a")
	note(j, 2, "dir/")
	f.Add(slices.Clone(j.log.memory[:256]))
	f.Add(slices.Clone(j.log.memory[:120]))
	if err := j.Close(); err != nil {
		f.Fatal(err)
	}
	image, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(image[:512])
	f.Add(bytes.Repeat([]byte{0xff}, 200))
	f.Fuzz(func(t *testing.T, image []byte) {
		dir, err := os.MkdirTemp("/dev/shm", "") // syncs cost nothing there
		if err != nil {
			dir = t.TempDir()
		}
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, "journal")
		for _, ro := range []bool{true, false} {
			if err := os.WriteFile(path, image, 0o600); err != nil {
				t.Fatal(err)
			}
			j := open(t, path, Options{ReadOnly: ro, limit: 16 << 10})
			token, _, _ := j.Since(j.Start())
			if !ro {
				note(j, 1, "new")
				if _, paths, ok := j.Since(token); !ok || !slices.Contains(paths, "new") {
					t.Errorf("changes since %s: got %q, %v", token, paths, ok)
				}
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
		}
		j := open(t, path, Options{limit: 16 << 10})
		if _, paths, ok := j.Since(formatToken(j.epoch, j.last-1)); !ok || !slices.Equal(paths, []string{"new"}) {
			t.Errorf("changes after the next record: got %q, %v", paths, ok)
		}
	})
}

func FuzzToken(f *testing.F) {
	f.Add("0000000000000001:7")
	f.Add(":")
	f.Fuzz(func(t *testing.T, s string) {
		epoch, record, ok := parseToken(s)
		if !ok {
			return
		}
		if e, r, ok := parseToken(formatToken(epoch, record)); !ok || e != epoch || r != record {
			t.Errorf("position %q: formatted and parsed again it is epoch %x, record %s", s, e, strconv.FormatUint(r, 10))
		}
	})
}
