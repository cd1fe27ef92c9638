package gittest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// records makes the log of an ssh server. The link sees only encrypted bytes, but each session records all bytes in both
// directions before it passes them on (see session). When the log is read, the new part of the recordings is read first.
type records struct {
	s   *Server
	dir string

	mu   sync.Mutex // acquired before dialogue.mu
	open map[string]*record
	done map[string]bool
}

// record is the position up to which the recording of a session was read.
type record struct {
	dialogue        *dialogue
	asked, answered int64
}

func newRecords(s *Server) *records {
	return &records{s: s, dir: s.sshFile("sessions"), open: map[string]*record{}, done: map[string]bool{}}
}

// renew reads the new part of all recordings.
func (r *records) renew() {
	r.mu.Lock()
	defer r.mu.Unlock()
	sessions, err := os.ReadDir(r.dir) // in the order of the connections
	if err != nil {
		return // after close, which has read everything
	}
	for _, session := range sessions {
		if name := session.Name(); !r.done[name] {
			r.read(name)
		}
	}
}

// close reads the rest of the recordings. The sessions must have ended.
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
			return // the session has just begun
		}
		var conn int
		fmt.Sscanf(name, "%d-", &conn)
		c = &record{dialogue: newDialogue(r.s, conn, false)}
		c.dialogue.start(string(lines[2]), string(lines[0]), string(lines[1]))
		r.open[name] = c
	}
	// The files are read in this order, so that the request of every answer was read before the answer.
	_, err := os.Stat(filepath.Join(dir, "ended"))
	ended := err == nil
	answered := size(filepath.Join(dir, "answered"))
	c.asked = replay(filepath.Join(dir, "asked"), c.asked, size(filepath.Join(dir, "asked")), c.dialogue.asks)
	c.answered = replay(filepath.Join(dir, "answered"), c.answered, answered, c.dialogue.says)
	if ended {
		c.dialogue.end()
		delete(r.open, name)
		r.done[name] = true
		os.RemoveAll(dir) // packs may be large; if this fails, the file is removed together with the server's directory
	}
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0 // no bytes were recorded yet
	}
	return info.Size()
}

// replay calls hear with the bytes of a file between two offsets, and returns the offset that it has reached.
func replay(path string, from, to int64, hear func([]byte)) int64 {
	f, err := os.Open(path)
	if err != nil {
		return from
	}
	defer f.Close()
	n, _ := io.Copy(hearer(hear), io.NewSectionReader(f, from, to-from))
	return from + n
}

type hearer func([]byte)

func (h hearer) Write(p []byte) (int, error) {
	h(p)
	return len(p), nil
}
