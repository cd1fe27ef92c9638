package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// trace counts the requests that the kernel sends to one FUSE mount. It uses a tracepoint of the kernel, which takes
// less than a microsecond for each request. If the kernel has no such tracepoint, nothing is counted.
type trace struct{ dir string }

const traceBuffer = 192 << 10 // size of the trace buffer for each CPU in KiB, enough for more than a million requests

func newTrace(mount string) *trace {
	var st unix.Stat_t
	if unix.Stat(mount, &st) != nil {
		return &trace{}
	}
	const tracefs = "/sys/kernel/tracing"
	if _, err := os.Stat(tracefs + "/instances"); err != nil && unix.Mount("tracefs", tracefs, "tracefs", 0, "") != nil {
		return &trace{}
	}
	dir := filepath.Join(tracefs, "instances", fmt.Sprintf("artifactfs-bench-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return &trace{}
	}
	t := &trace{dir}
	t.set("events/fuse/fuse_request_send/filter", fmt.Sprintf("connection == %d", unix.Minor(st.Dev)))
	t.set("buffer_size_kb", fmt.Sprint(traceBuffer))
	return t
}

func (t *trace) set(file, value string) {
	if t.dir != "" {
		os.WriteFile(filepath.Join(t.dir, file), []byte(value), 0)
	}
}

func (t *trace) begin() {
	t.set("trace", "\n")
	t.set("events/fuse/fuse_request_send/enable", "1")
}

var opcode = regexp.MustCompile(`opcode \d+ \(FUSE_(\w+)\)`)

// end returns, as text, the number of requests of each kind since begin was called, the most frequent kind first.
func (t *trace) end() string {
	t.set("events/fuse/fuse_request_send/enable", "0")
	f, err := os.Open(filepath.Join(t.dir, "trace"))
	if t.dir == "" || err != nil {
		return "-"
	}
	defer f.Close()
	counts, lost := map[string]int{}, ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if found := opcode.FindStringSubmatch(line); found != nil {
			counts[found[1]]++
		} else if strings.Contains(line, "entries-in-buffer/entries-written:") {
			var kept, written int
			fmt.Sscanf(line[strings.IndexByte(line, ':')+1:], "%d/%d", &kept, &written)
			if kept < written {
				lost = fmt.Sprintf(", %d more", written-kept)
			}
		}
	}
	t.set("trace", "\n")
	var kinds []string
	for k := range counts {
		kinds = append(kinds, k)
	}
	slices.SortFunc(kinds, func(a, b string) int { return counts[b] - counts[a] })
	for i, k := range kinds {
		kinds[i] = fmt.Sprintf("%d %s", counts[k], strings.ToLower(k))
	}
	if len(kinds) > 6 {
		kinds = kinds[:6]
	}
	return strings.Join(kinds, ", ") + lost
}

func (t *trace) close() {
	if t.dir != "" {
		os.Remove(t.dir)
	}
}
