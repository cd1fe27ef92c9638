package agenthook

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// stored describes which part of the files of a conversation is in the memory of the session.
type stored struct {
	Agent   Agent           `json:"agent"`
	Writer  string          `json:"writer"` // random; offsets in records of one writer refer to the same files
	Files   map[string]mark `json:"files"`
	Bytes   int64           `json:"bytes"`
	Dropped int64           `json:"dropped,omitempty"`
	// Diverged is whether the files of this host and those of the session have different continuations. Then nothing is
	// stored, because the memory would become a mixture of both.
	Diverged bool `json:"diverged,omitempty"`
	// Here is whether the session had all of the conversation's file when it was placed, or the hooks have stored lines of
	// it. Then more of it is stored, also if it has begun at another directory, as a conversation of codex may have.
	Here bool `json:"here,omitempty"`

	path   string
	others int64 // number of bytes of other conversations
}

// mark states which part of a file is stored.
type mark struct {
	Offset int64  `json:"offset"`        // number of bytes that are stored
	Sum    string `json:"sum,omitempty"` // hash of a file that is stored as a whole, and of the last line of others
	// Left is whether the last line was left out. One record stands for all such lines in a row.
	Left bool `json:"left,omitempty"`
	// Parts is the number of parts of the next text after Offset, or of the next version of the whole file, that are
	// stored. Text is the hash of this text.
	Parts int    `json:"parts,omitempty"`
	Text  string `json:"text,omitempty"`
}

// fits reports whether text is the file to which the mark belongs, with or without further lines.
func (m mark) fits(text []byte) bool {
	return m.Offset > 0 && m.Offset <= int64(len(text)) && m.Sum == lastSum(bytes.NewReader(text), m.Offset)
}

// loadStored returns the state of a conversation.
func loadStored(gitDir string, a Agent, conversation string) (*stored, error) {
	dir := filepath.Join(gitDir, memoryDir)
	s := &stored{}
	name := string(a) + "-" + conversation + ".json"
	if err := s.load(filepath.Join(dir, name)); err != nil || s.Files == nil {
		s.Files = map[string]mark{}
	}
	s.Agent, s.Writer, s.path = a, cmp.Or(s.Writer, rand.Text()), filepath.Join(dir, name)
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		var o stored
		if f.Name() != name && o.load(filepath.Join(dir, f.Name())) == nil {
			s.others += o.Bytes
		}
	}
	return s, nil
}

func (s *stored) load(path string) error {
	text, err := disk.ReadRegular(path, 1<<20)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, s)
}

func (s *stored) save() error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return disk.WriteFileUnsynced(s.path, text, 0o600)
}

// full reports whether n more bytes exceed a limit.
func (s *stored) full(n int64) bool {
	return s.Bytes+n > maxMemoryConversation || s.others+s.Bytes+n > MaxMemory
}
