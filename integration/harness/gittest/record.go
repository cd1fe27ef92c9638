package gittest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// records creates the log of an ssh server. The link sees only encrypted bytes, so each session records all bytes in
// both directions before it passes them on (see session). Whenever the log is read, records first parses the new bytes
// of the recordings.
type records struct {
	s   *Server
	dir string

	mu   sync.Mutex // acquired before dialogue.mu
	open map[string]*record
	done map[string]bool
}

// record is the state of parsing the recording of one session: the numbers of bytes that were parsed in each direction.
type record struct {
	dialogue        *dialogue
	asked, answered int64
}

func newRecords(s *Server) *records {
	return &records{s: s, dir: s.sshFile("sessions"), open: map[string]*record{}, done: map[string]bool{}}
}

// renew parses the new bytes of all recordings.
func (r *records) renew() {
	r.mu.Lock()
	defer r.mu.Unlock()
	sessions, err := os.ReadDir(r.dir) // names sort in the order of the connections
	if err != nil {
		return // close was called and has parsed everything
	}
	for _, session := range sessions {
		if name := session.Name(); !r.done[name] {
			r.read(name)
		}
	}
}

// close parses the rest of all recordings. The sessions must have ended.
func (r *records) close() {
	r.renew()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.open {
		c.dialogue.end()
	}
	clear(r.open)
}

func (r *records) read(name string) {
	dir := filepath.Join(r.dir, name)
	c := r.open[name]
	if c == nil {
		about, err := os.ReadFile(filepath.Join(dir, "about"))
		lines := bytes.Split(about, []byte("\n"))
		if err != nil || len(lines) < 4 {
			return // the session has not created its files yet
		}
		var conn int
		fmt.Sscanf(name, "%d-", &conn)
		c = &record{dialogue: newDialogue(r.s, conn, false)}
		c.dialogue.start(string(lines[2]), string(lines[0]), string(lines[1]))
		r.open[name] = c
	}
	// The client's bytes are parsed first, so that each request is known before its answer.
	_, err := os.Stat(filepath.Join(dir, "ended"))
	ended := err == nil
	answered := size(filepath.Join(dir, "answered"))
	c.asked = replay(filepath.Join(dir, "asked"), c.asked, size(filepath.Join(dir, "asked")), c.dialogue.fromClient)
	c.answered = replay(filepath.Join(dir, "answered"), c.answered, answered, c.dialogue.fromServer)
	if ended {
		c.dialogue.end()
		delete(r.open, name)
		r.done[name] = true
		// the directory is removed now, because packs may be large; if this fails, it is removed together with the
		// server's directory
		os.RemoveAll(dir)
	}
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0 // the file does not exist, because no bytes were recorded yet
	}
	return info.Size()
}

// replay calls hear with the bytes of a file from offset from to offset to, and returns the offset after the last byte
// that it could read.
func replay(path string, from, to int64, hear func([]byte)) int64 {
	f, err := os.Open(path)
	if err != nil {
		return from
	}
	defer f.Close()
	n, _ := io.Copy(writerFunc(hear), io.NewSectionReader(f, from, to-from))
	return from + n
}

type writerFunc func([]byte)

func (h writerFunc) Write(p []byte) (int, error) {
	h(p)
	return len(p), nil
}
