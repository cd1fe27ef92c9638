package gittest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// records makes the log of an ssh server: what is said goes encrypted through the link, but each session writes down
// what it heard and said (see session), before it passes it on. Whoever reads the log has the new part of that read.
type records struct {
	s   *Server
	dir string

	mu   sync.Mutex // taken before dialogue.mu
	open map[string]*record
	done map[string]bool
}

// record is how far a session has been read.
type record struct {
	dialogue        *dialogue
	asked, answered int64
}

func newRecords(s *Server) *records {
	return &records{s: s, dir: s.sshFile("sessions"), open: map[string]*record{}, done: map[string]bool{}}
}

// renew reads what is new.
func (r *records) renew() {
	r.mu.Lock()
	defer r.mu.Unlock()
	sessions, err := os.ReadDir(r.dir) // in order of connections
	if err != nil {
		return // closed: all of it was read then
	}
	for _, session := range sessions {
		if name := session.Name(); !r.done[name] {
			r.read(name)
		}
	}
}

// close reads the rest. Sessions must have ended.
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
			return // just beginning
		}
		var conn int
		fmt.Sscanf(name, "%d-", &conn)
		c = &record{dialogue: newDialogue(r.s, conn, false)}
		c.dialogue.start(string(lines[2]), string(lines[0]), string(lines[1]))
		r.open[name] = c
	}
	// In this order, so that every answer read is to a request that was read.
	_, err := os.Stat(filepath.Join(dir, "ended"))
	ended := err == nil
	answered := size(filepath.Join(dir, "answered"))
	c.asked = replay(filepath.Join(dir, "asked"), c.asked, size(filepath.Join(dir, "asked")), c.dialogue.asks)
	c.answered = replay(filepath.Join(dir, "answered"), c.answered, answered, c.dialogue.says)
	if ended {
		c.dialogue.end()
		delete(r.open, name)
		r.done[name] = true
		os.RemoveAll(dir) // packs may be large; what is not removed now is with the server's directory
	}
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0 // nothing was said yet
	}
	return info.Size()
}

// replay lets hear what a file has between two places and says how far that went.
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
