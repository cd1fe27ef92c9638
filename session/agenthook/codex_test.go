package agenthook

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const codexFile = "2026/11/30/rollout-2026-11-30T01-27-41-" + conversationID + ".jsonl"

// codexHost is a host whose user runs codex, which has one directory for the conversations of all mounts.
type codexHost struct {
	t          *testing.T
	home, file string
}

func codexAt(t *testing.T) *codexHost {
	h := &codexHost{t: t, home: t.TempDir()}
	h.file = filepath.Join(h.home, "sessions", codexFile)
	return h
}

// mount returns the git directory of a mount that keeps the memory of agents.
func (h *codexHost) mount() (gitDir string) {
	h.t.Helper()
	gitDir = h.t.TempDir()
	if err := KeepMemory(gitDir, MemoryPlace); err != nil {
		h.t.Fatal(err)
	}
	return gitDir
}

// add adds lines to the file of the conversation.
func (h *codexHost) add(lines string) {
	h.t.Helper()
	text, _ := os.ReadFile(h.file) // there may be none
	if err := os.MkdirAll(filepath.Dir(h.file), 0o700); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(h.file, append(text, lines...), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// send runs the hook in the mount at root, and returns the number of records that it has added to the store.
func (h *codexHost) send(gitDir, root string, store *[]json.RawMessage) int {
	h.t.Helper()
	n := len(*store)
	err := SendMemory(gitDir, root, under(root), Event{Agent: Codex, File: h.file}, func() bool { return false },
		func(lines []string) error {
			for _, l := range lines {
				*store = append(*store, json.RawMessage(l))
			}
			return nil
		})
	if err != nil {
		h.t.Fatal(err)
	}
	return len(*store) - n
}

// place places the conversation in the mount at root.
func (h *codexHost) place(gitDir, root string, store []json.RawMessage) Placed {
	h.t.Helper()
	h.t.Setenv("CODEX_HOME", h.home)
	p, err := Remember(store)[0].Place(root, gitDir, under(root))
	if err != nil {
		h.t.Fatal(err)
	}
	return p
}

const codexBegin, codexNext = `{"type":"session_meta","payload":{"cwd":"/a/web"}}` + "\n",
	`{"type":"event_msg","payload":{"type":"agent_message"}}` + "\n"

// TestCodexForkOfAnotherMount checks that the lines of a fork are not appended to the file of its parent on the host of
// the parent, whose hooks would store them in the memory of the parent.
func TestCodexForkOfAnotherMount(t *testing.T) {
	var parent []json.RawMessage
	one, two := codexAt(t), codexAt(t)
	atParent, atFork := one.mount(), two.mount()
	one.add(codexBegin)
	one.send(atParent, "/a", &parent)
	fork := slices.Clone(parent)
	two.place(atFork, "/f", fork)
	two.add(codexNext)
	if n := two.send(atFork, "/f", &fork); n != 1 {
		t.Fatalf("the fork has stored %d records, want 1", n)
	}
	again := one.mount()
	if p := one.place(again, "/home/f", fork); p.Outcome != MemoryNewer {
		t.Errorf("fork on the host of its parent: %+v", p)
	}
	if text, err := os.ReadFile(one.file); err != nil || string(text) != codexBegin {
		t.Errorf("file of the parent: %s, %v", text, err)
	}
	if n := one.send(atParent, "/a", &parent); n != 0 {
		t.Errorf("the parent has stored %d records of its fork", n)
	}
	one.add(codexNext)
	if n := one.send(again, "/home/f", &fork); n != 0 {
		t.Errorf("the fork has stored %d records of another history", n)
	}
}

// TestCodexContinuesElsewhere checks that a conversation which codex continues at another directory of the host is
// stored if the session has it, and only then.
func TestCodexContinuesElsewhere(t *testing.T) {
	var store []json.RawMessage
	h := codexAt(t)
	first := h.mount()
	h.add(codexBegin)
	h.send(first, "/a", &store)
	fork, other, late := h.mount(), h.mount(), h.mount()
	if p := h.place(fork, "/fork", store); p.Outcome != MemoryCurrent {
		t.Errorf("fork: %+v", p)
	}
	h.add(codexNext)
	// The session of this mount has not all of the file: the rest may belong to another session.
	if p := h.place(late, "/late", store); p.Outcome != MemoryNewer {
		t.Errorf("late fork: %+v", p)
	}
	for _, c := range []struct {
		gitDir, root string
		want         int
	}{{first, "/moved", 1}, {fork, "/fork", 1}, {other, "/other", 0}, {late, "/late", 0}} {
		own := slices.Clone(store)
		if n := h.send(c.gitDir, c.root, &own); n != c.want {
			t.Errorf("at %s: stored %d records, want %d", c.root, n, c.want)
		}
	}
	// Another file of the conversation is not the one that the session has.
	if err := os.Remove(h.file); err != nil {
		t.Fatal(err)
	}
	h.add(codexNext + codexBegin + codexNext)
	if n := h.send(fork, "/fork", &store); n != 0 {
		t.Errorf("stored %d records of another file", n)
	}
}

// TestCodexOfAnotherHost checks that the lines that another host has added to a session are appended to the file of
// this host, also if the session is mounted at another directory now.
func TestCodexOfAnotherHost(t *testing.T) {
	for _, root := range []string{"/a", "/moved"} {
		var store []json.RawMessage
		one, two := codexAt(t), codexAt(t)
		first, second := one.mount(), two.mount()
		one.add(codexBegin)
		one.send(first, "/a", &store)
		two.place(second, "/b", store)
		two.add(codexNext)
		two.send(second, "/b", &store)
		if p := one.place(first, root, store); p.Outcome != MemoryUpdated {
			t.Errorf("at %s: %+v", root, p)
		}
		if text, err := os.ReadFile(one.file); err != nil || string(text) != codexBegin+codexNext {
			t.Errorf("at %s: %s, %v", root, text, err)
		}
	}
}
