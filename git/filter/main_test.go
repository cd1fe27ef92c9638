package filter

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
)

// TestMain runs the tests, or acts as a filter process if a test has started this program as one.
func TestMain(m *testing.M) {
	if behaviour := os.Getenv("TEST_FILTER"); behaviour != "" {
		drive(behaviour)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// command returns the command of a process filter that behaves as the parameter behaviour states.
func command(behaviour string) string {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return "TEST_FILTER='" + behaviour + "' '" + exe + "'"
}

// driver is the filter's side of the protocol of process filters. It answers with the contents in upper case.
type driver struct {
	in        packetReader
	out       packetWriter
	behaviour string
	asked     int
}

func note(text string) {
	f, err := os.OpenFile("trace", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(f, text)
	f.Close()
}

func drive(behaviour string) {
	d := driver{in: newPacketReader(os.Stdin), out: packetWriter{bufio.NewWriter(os.Stdout)}, behaviour: behaviour}
	note("start " + os.Getenv("GIT_DIR"))
	if behaviour == "fails" {
		os.Exit(3)
	}
	if behaviour == "garbage" {
		os.Stdout.WriteString("hello\n")
		return
	}
	d.list()
	d.writeLines("git-filter-server", "version=2")
	caps := d.list()
	if !bytes.Contains([]byte(strings.Join(caps, " ")), []byte("capability=smudge")) {
		panic("not asked to smudge")
	}
	switch {
	case behaviour == "cleans":
		d.writeLines("capability=clean")
	case strings.HasPrefix(behaviour, "delay"):
		d.writeLines("capability=clean", "capability=smudge", "capability=delay")
	default:
		d.writeLines("capability=smudge")
	}
	var delayed, collected []string
	contents := map[string][]byte{}
	for {
		head := d.list()
		if head == nil {
			note("end")
			return
		}
		if head[0] == "command=list_available_blobs" {
			note("list")
			switch {
			case behaviour == "delay-forget":
				delayed = nil
			case behaviour == "delay-lie":
				delayed = []string{"somebody/else"}
			case behaviour == "delay-die" && len(collected) > 0:
				os.Exit(3)
			}
			if len(delayed) > 2 {
				collected, delayed = delayed[:2], delayed[2:]
			} else {
				collected, delayed = delayed, nil
			}
			for _, path := range collected {
				d.out.line("pathname=" + path)
			}
			d.out.end()
			d.writeLines("status=success")
			continue
		}
		path, mayDelay := "", false
		for _, line := range head {
			if p, ok := strings.CutPrefix(line, "pathname="); ok {
				path = p
			}
			mayDelay = mayDelay || line == "can-delay=1"
		}
		note("smudge " + strings.Join(head[1:], " "))
		var content bytes.Buffer
		if err := d.in.copyTo(&content); err != nil {
			panic(err)
		}
		if d.asked++; d.answerWrongly(path) {
			continue
		}
		if mayDelay {
			delayed = append(delayed, path)
			contents[path] = content.Bytes()
			d.writeLines("status=delayed")
			continue
		}
		text := content.Bytes()
		if was, ok := contents[path]; ok {
			text = was
			delete(contents, path)
		}
		d.writeLines("status=success")
		if err := d.out.content(bytes.NewReader(bytes.ToUpper(text))); err != nil {
			panic(err)
		}
		d.out.end()
		d.writeLines()
	}
}

// answerWrongly answers a request wrongly if its path requires this, and reports whether it did.
func (d *driver) answerWrongly(path string) bool {
	after, _ := strconv.Atoi(strings.TrimPrefix(d.behaviour, "dies-after-"))
	switch {
	case strings.HasPrefix(d.behaviour, "dies-after-") && d.asked > after:
		os.Exit(3)
	case d.behaviour == "hangs" && filepath.Base(path) != "good":
		time.Sleep(time.Hour)
	case d.behaviour == "nonsense":
		d.out.line("status=success")
		d.out.end()
		d.out.w.WriteString("zzzz")
		d.out.flush()
		time.Sleep(time.Hour)
	case strings.HasSuffix(path, "bad"):
		d.writeLines("status=error")
		return true
	case strings.HasSuffix(path, "late"): // the error follows the contents
		d.writeLines("status=success")
		d.out.packet([]byte("half"))
		d.out.end()
		d.writeLines("status=error")
		return true
	case strings.HasSuffix(path, "abort"):
		d.writeLines("status=abort")
		return true
	}
	return false
}

func (d *driver) writeLines(lines ...string) {
	for _, line := range lines {
		d.out.line(line)
	}
	d.out.end()
	if err := d.out.flush(); err != nil {
		os.Exit(1)
	}
}

// list reads lines up to a flush packet. It returns nil at the end of the input.
func (d *driver) list() []string {
	lines := []string{}
	err := d.in.lines(func(line string) error {
		lines = append(lines, line)
		return nil
	})
	if err == io.EOF {
		return nil
	}
	if err != nil {
		panic(err)
	}
	return lines
}

// tree is a working tree for which filters are run.
type tree struct {
	*Programs
	t   *testing.T
	dir string
}

func newTree(t *testing.T, change func(*Options)) *tree {
	t.Helper()
	o := Options{Dir: t.TempDir(), Deadline: time.Minute, Log: zap.NewNop()}
	o.Env = []string{"GIT_DIR=" + filepath.Join(o.Dir, "git")}
	if change != nil {
		change(&o)
	}
	p := New(o)
	t.Cleanup(p.Close)
	return &tree{p, t, o.Dir}
}

// trace returns the log of the filters, and the number of its lines by their first words.
func (tr *tree) trace() (text string, count map[string]int) {
	tr.t.Helper()
	b, _ := os.ReadFile(filepath.Join(tr.dir, "trace"))
	count = map[string]int{}
	for line := range strings.Lines(string(b)) {
		word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		count[word]++
	}
	return string(b), count
}

// output is a writer that stores the data in memory.
type output struct{ bytes.Buffer }

func (o *output) Reset() error {
	o.Buffer.Reset()
	return nil
}

func file(path, content string) (File, *output) {
	out := &output{}
	return File{Path: path, Content: strings.NewReader(content), Size: int64(len(content)), Out: out}, out
}

// through filters contents by a process filter that behaves as the parameter behaviour states.
func (tr *tree) through(behaviour, path, content string) (string, error) {
	f, out := file(path, content)
	err := tr.Process(command(behaviour), f)
	return out.String(), err
}
