package imports

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/server/records"
)

// phases maps the titles of git's progress to the texts that are shown. Other titles are not shown, because the text
// comes from the other server.
var phases = map[string]string{
	"Enumerating objects": "enumerating objects", "Counting objects": "counting objects",
	"Compressing objects": "compressing objects",
	"Receiving objects":   receiving, "Unpacking objects": receiving, "Resolving deltas": resolving,
	"Checking connectivity": "checking connectivity",
}

const (
	receiving = "receiving objects"
	resolving = "resolving deltas"
	maxLine   = 1 << 10
)

// parseProgress parses a line such as "remote: Counting objects:  12% (345/2874), 1.2 MiB | 2 MiB/s".
func parseProgress(line string) (phase string, done, total int64, ok bool) {
	line = strings.TrimPrefix(line, "remote: ")
	title, rest, _ := strings.Cut(line, ":")
	phase = phases[title]
	if phase == "" {
		return "", 0, 0, false
	}
	_, pair, found := strings.Cut(rest, "(")
	if !found {
		count, _, _ := strings.Cut(strings.TrimSpace(rest), ",")
		done, err := strconv.ParseInt(count, 10, 64)
		return phase, done, 0, err == nil && done >= 0
	}
	pair, _, _ = strings.Cut(pair, ")")
	first, second, _ := strings.Cut(pair, "/")
	done, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return "", 0, 0, false
	}
	total, err = strconv.ParseInt(second, 10, 64)
	if err != nil || done < 0 || done > total {
		return "", 0, 0, false
	}
	return phase, done, total, true
}

// progress is a writer for the error output of git fetch. Its state may be read while git writes.
type progress struct {
	mu          sync.Mutex
	line        []byte
	phase       string
	done, total int64
	last        []string // the last lines that do not report progress
}

func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for rest := b; len(rest) > 0; {
		i := bytes.IndexAny(rest, "\r\n")
		if i < 0 {
			p.line = append(p.line, rest[:min(len(rest), maxLine-len(p.line))]...)
			break
		}
		p.line = append(p.line, rest[:min(i, maxLine-len(p.line))]...)
		p.end()
		rest = rest[i+1:]
	}
	return len(b), nil
}

// end handles the end of a line. The caller holds p.mu.
func (p *progress) end() {
	line := strings.TrimSpace(string(p.line))
	p.line = p.line[:0]
	if phase, done, total, ok := parseProgress(line); ok {
		p.phase, p.done, p.total = phase, done, total
		return
	}
	if text := printable(line); text != "" {
		p.last = append(p.last, text)
		p.last = p.last[max(0, len(p.last)-3):]
	}
}

func (p *progress) state() (phase string, done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.phase, p.done, p.total
}

// message returns the last lines of output that do not report progress.
func (p *progress) message() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.last, "; ")
}

// slowRate is the average number of bytes per second that another server must send. A slower server would occupy a
// place for hours.
const slowRate = 2 << 10

// slowness detects that another server sends too slowly.
type slowness struct {
	pace    pace
	seen    time.Time // time of the last check
	phase   string
	done    int64
	waited  time.Duration // time without progress of the other server, or in which it has sent objects
	counted time.Duration // time with progress before the other server has sent objects
}

// check reports whether the other server is too slow. m contains the progress at the time now. While a server counts
// and compresses the objects of a large repository, it sends nearly nothing, but its progress changes.
func (s *slowness) check(m records.Import, now time.Time) bool {
	passed := now.Sub(s.seen)
	s.seen = now
	if moved := m.Phase != s.phase || m.Done != s.done; moved && m.Phase != receiving {
		s.counted += passed
	} else {
		s.waited += passed
	}
	s.phase, s.done = m.Phase, m.Done
	sent := time.Duration(float64(m.Bytes) / slowRate * float64(time.Second))
	return s.waited > s.pace.slow+sent || s.counted > s.pace.count+sent
}
