package worktree_test

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	. "github.com/artifactfs/artifactfs/worktree"
)

// snapshot is the state of the tree at a journal position. A client of Changes that has it checks only the reported
// paths later.
type snapshot struct {
	Token string
	Paths map[string]string
}

// look takes a snapshot, after the journal position.
func (m *model) look() snapshot {
	m.t.Helper()
	c, err := m.Monitor().Changes("")
	m.ok(err)
	return snapshot{c.Token, m.signatures()}
}

// signatures returns a text with the attributes and contents of each path.
func (m *model) signatures() map[string]string {
	paths := make(map[string]string)
	var visit func(dir Node, path string)
	visit = func(dir Node, path string) {
		names := make(map[string]Node)
		m.ok(m.ReadDir(m.t.Context(), dir, 0, func(e Entry) bool {
			names[strings.Clone(e.Name)] = e.Node
			return true
		}))
		for name, n := range names {
			at := filepath.Join(path, name)
			a, err := m.Attr(m.t.Context(), n)
			m.ok(err)
			switch a.Mode & syscall.S_IFMT {
			case syscall.S_IFDIR:
				paths[at] = fmt.Sprintf("%o", a.Mode)
				visit(n, at)
			case syscall.S_IFREG:
				data := make([]byte, a.Size)
				_, err := m.Read(m.t.Context(), n, data, 0)
				m.ok(err)
				paths[at] = fmt.Sprintf("%o %d %x", a.Mode, a.Mtime, crc32.ChecksumIEEE(data))
			default:
				paths[at] = fmt.Sprintf("%o %d %d", a.Mode, a.Mtime, n)
			}
		}
	}
	visit(Root, "")
	return paths
}

// trust checks that Changes returns all paths that differ from a snapshot.
func (m *model) trust(s snapshot) {
	m.t.Helper()
	c, err := m.Monitor().Changes(s.Token)
	m.ok(err)
	if c.All {
		m.t.Errorf("%s: journal position %s is not known", m.what, s.Token)
		return
	}
	named := make(map[string]bool)
	for _, path := range c.Paths {
		named[path] = true
	}
	covered := func(path string) bool {
		if named[path] {
			return true
		}
		for at := path; at != "."; at = filepath.Dir(at) {
			if named[at+"/"] {
				return true
			}
		}
		return false
	}
	now := m.signatures()
	for path, signature := range now {
		if before, ok := s.Paths[path]; before == signature {
			continue
		} else if !covered(path) {
			m.t.Errorf("%s: %s is %s, was %q, %v, and is not among %q since %s", m.what, path, signature, before, ok,
				c.Paths, s.Token)
		}
	}
	for path := range s.Paths {
		if _, ok := now[path]; !ok && !covered(path) {
			m.t.Errorf("%s: %s was removed, and is not among %q since %s", m.what, path, c.Paths, s.Token)
		}
	}
	// Git's untracked cache invalidates a directory only if a path inside of it is reported.
	for _, path := range c.Paths {
		dir, ok := strings.CutSuffix(path, "/")
		if !ok {
			continue
		}
		for at, signature := range now {
			if (at == dir || strings.HasPrefix(at, path)) && strings.HasPrefix(signature, "4") && !named[at+"/*"] {
				m.t.Errorf("%s: directory %s below %s, but not %s/*, is among %q", m.what, at, path, at, c.Paths)
			}
		}
	}
}

// lookers take snapshots now and then, at different times.
func (m *model) lookers(seen []snapshot) []snapshot {
	if len(seen) > 0 && m.rng.IntN(10) == 0 {
		i := m.rng.IntN(len(seen))
		m.trust(seen[i])
		seen[i] = m.look()
	}
	if len(seen) < 3 && m.rng.IntN(10) == 0 {
		seen = append(seen, m.look())
	}
	return seen
}

// keepLooks stores snapshots for the next process, and takeLooks reads them.
func (m *model) keepLooks(seen []snapshot) {
	data, err := json.Marshal(seen)
	m.ok(err)
	m.ok(os.WriteFile(filepath.Join(m.dir, "looks"), data, 0o600))
}

func (m *model) takeLooks() (seen []snapshot) {
	data, err := os.ReadFile(filepath.Join(m.dir, "looks"))
	if os.IsNotExist(err) {
		return nil
	}
	m.ok(err)
	m.ok(json.Unmarshal(data, &seen))
	return seen
}
