package gittest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// tally counts the bytes of one answer before they are passed from a server to a client, and finds the pack in them.
type tally struct {
	s    *Server
	e    *entry
	repo string // directory of the served repository

	packets packets
	idle    bool // the rest of the bytes is not examined
	packed  int64
	head    []byte // header of the pack
	spool   spool
	ended   bool
	reading sync.WaitGroup // used to wait for the goroutine that reads the pack
}

func (s *Server) newTally(e *entry, repo string) *tally {
	t := &tally{s: s, e: e, repo: repo, idle: e.Command != Fetch}
	t.packets.each = t.packet
	return t
}

// passes counts the next bytes of the answer.
func (t *tally) passes(p []byte) {
	if !t.idle {
		t.packets.feed(p)
	}
	t.bytes(len(p))
}

func (t *tally) bytes(n int) {
	t.s.log.update(t.e, func(e *entry) {
		if !e.At.IsZero() {
			e.Duration = time.Since(e.At)
		}
		if e.BytesOut == 0 {
			e.FirstByte = e.Duration
		}
		e.BytesOut += int64(n)
	})
}

// packet finds the bytes of the pack: they are in band 1 of the side-band, or follow the packets directly if the client
// does not support the side-band.
func (t *tally) packet(kind packetKind, payload []byte) {
	switch {
	case t.idle:
	case kind == dataPacket:
		if len(payload) > 0 && payload[0] == packBand {
			t.pack(payload[1:])
		}
	case kind == rawBytes:
		t.pack(payload)
	case t.packed > 0:
		t.end()
	}
}

func (t *tally) pack(b []byte) {
	t.packed += int64(len(b))
	if len(t.head) < 12 {
		t.head = append(t.head, b[:min(len(b), 12-len(t.head))]...)
		if len(t.head) == 12 {
			n, err := packHeader(t.head)
			t.s.log.update(t.e, func(e *entry) {
				e.Objects = int(n)
				if err != nil {
					e.PackErr = err.Error()
				}
				if t.s.cheap {
					e.Blobs = Uncounted
				}
			})
			t.idle = t.s.cheap
		}
	}
	if !t.s.cheap {
		t.spool.write(b)
	}
}

// end records that the pack has ended, and starts to count the part that was received.
func (t *tally) end() {
	if t.ended || t.packed == 0 || t.s.cheap {
		return
	}
	t.ended, t.idle = true, true
	done := t.s.log.count()
	t.reading.Go(func() {
		// limits how many packs are read at the same time, because reading a pack takes a whole processor
		t.s.readers <- struct{}{}
		defer func() { <-t.s.readers }()
		defer t.spool.close()
		if t.spool.err != nil {
			done(t.e, packCount{err: t.spool.err})
			return
		}
		b := &catFile{dir: t.repo, group: &t.s.group}
		defer b.close()
		done(t.e, countPack(t.e.format, &t.spool, t.spool.size, b))
	})
}

// over records that the answer has ended. After that, only the number of blobs may still change, because the pack may
// still be counted.
func (t *tally) over() {
	// If the last packet is incomplete, the part that was sent is counted.
	if h := t.packets.held; !t.idle && len(h) > 5 && h[4] == packBand {
		t.pack(h[5:])
	}
	t.end()
	t.s.wg.Go(func() {
		t.reading.Wait()
		t.s.log.over(t.e)
	})
}

// spool stores bytes in memory, or in a file without a name if there are many.
type spool struct {
	mem  []byte
	file *os.File
	size int64
	err  error
}

const spoolOver = 4 << 20 // maximum number of bytes in memory

func (s *spool) write(b []byte) {
	if s.err != nil {
		return
	}
	if s.file == nil && len(s.mem)+len(b) > spoolOver {
		if s.file, s.err = os.CreateTemp("", "gittest-pack-*"); s.err != nil {
			return
		}
		os.Remove(s.file.Name())
		if _, s.err = s.file.Write(s.mem); s.err != nil {
			return
		}
		s.mem = nil
	}
	if s.file != nil {
		_, s.err = s.file.Write(b)
	} else {
		s.mem = append(s.mem, b...)
	}
	s.size += int64(len(b))
}

func (s *spool) ReadAt(p []byte, off int64) (int, error) {
	if s.file != nil {
		return s.file.ReadAt(p, off)
	}
	if off > int64(len(s.mem)) {
		return 0, io.EOF
	}
	n := copy(p, s.mem[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (s *spool) close() {
	if s.file != nil {
		s.file.Close()
	}
}

// catFile returns objects of a repository. It reads them from one process `git cat-file --batch`, which it starts for
// the first object.
type catFile struct {
	dir   string
	group *group

	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (c *catFile) object(id object.ID) (object.Type, []byte, error) {
	if c.cmd == nil {
		if err := c.start(); err != nil {
			return 0, nil, err
		}
	}
	if _, err := fmt.Fprintln(c.in, id); err != nil {
		return 0, nil, fmt.Errorf("request object %s: %w", id, err)
	}
	line, err := c.out.ReadString('\n')
	if err != nil {
		return 0, nil, fmt.Errorf("read %s: %w", id, noEOF(err))
	}
	f := strings.Fields(line)
	if len(f) != 3 {
		return 0, nil, fmt.Errorf("read object %s: not in the repository", id)
	}
	size, err := strconv.Atoi(f[2])
	if err != nil {
		return 0, nil, fmt.Errorf("read %s: %w", id, err)
	}
	content := make([]byte, size+1) // one byte more, because a newline follows the contents
	if _, err := io.ReadFull(c.out, content); err != nil {
		return 0, nil, fmt.Errorf("read %s: %w", id, noEOF(err))
	}
	for _, t := range []object.Type{object.Commit, object.Tree, object.Blob, object.Tag} {
		if t.String() == f[1] {
			return t, content[:size], nil
		}
	}
	return 0, nil, fmt.Errorf("read %s: unknown type %s", id, f[1])
}

func (c *catFile) start() error {
	cmd := exec.Command("git", "cat-file", "--batch")
	cmd.Dir, cmd.Env = c.dir, Env()
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start git cat-file: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start git cat-file: %w", err)
	}
	if err := c.group.start(cmd); err != nil {
		return err
	}
	c.cmd, c.in, c.out = cmd, in, bufio.NewReader(out)
	return nil
}

func (c *catFile) close() {
	if c.cmd != nil {
		c.in.Close()
		c.group.wait(c.cmd)
	}
}
