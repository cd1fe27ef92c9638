package githttp

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/server/meter"
)

// asked is what a fetch asks for, as far as the start of its request tells.
type asked struct {
	tip    bool // a ref points to the first object that is wanted; not known with haves
	haves  bool // the client has commits
	newest bool // the client wants commits without their parents
}

// readAsked reads head, the start of a request. dir is the replica.
func readAsked(head []byte, dir string) (a asked) {
	packets := pktline.NewReader(bytes.NewReader(head), maxHead)
	want := ""
	for {
		_, data, err := packets.Next()
		if err != nil {
			break
		}
		switch verb, rest, _ := strings.Cut(strings.TrimSuffix(string(data), "\n"), " "); verb {
		case "have":
			a.haves = true
		case "want":
			if want == "" {
				want, _, _ = strings.Cut(rest, " ")
			}
		case "want-ref":
			a.tip = true
		case "deepen":
			a.newest = rest == "1"
		}
	}
	a.tip = a.tip || !a.haves && want != "" && isTip(filepath.Join(dir, "packed-refs"), want)
	return a
}

// kind returns meter.Clone for a client that has no commits and wants one to which a ref points, and meter.Fetch for others, such as
// partial clones that want contents.
func (a asked) kind() string {
	if a.tip && !a.haves {
		return meter.Clone
	}
	return meter.Fetch
}

// options returns git's options for the answer. Of a clone of one commit, and of contents for a partial clone, few objects are versions
// of each other. git would compare each object whose stored delta cannot be sent with ten others; one is enough there: it takes 40%
// less time of the processor, and 0.1 to 4% more bytes. Of other answers it would make some much larger.
func (a asked) options() []string {
	if !a.haves && (a.newest || !a.tip) {
		return []string{"-c", "pack.window=1"}
	}
	return nil
}

// isTip reports whether a line of a file packed-refs begins with an id.
func isTip(path, id string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadSlice('\n')
		if bytes.HasPrefix(line, []byte(id+" ")) {
			return true
		}
		if err != nil && err != bufio.ErrBufferFull {
			return false
		}
	}
}
