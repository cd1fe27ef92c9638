package gitdir

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// ModulesFile is the file in the root of a tree that says where its submodules come from (gitmodules(5)).
const ModulesFile = ".gitmodules"

// Submodule is what .gitmodules says of one.
type Submodule struct {
	Name string
	Path string // in the tree
	URL  string // as it is written there: ResolveURL makes one of it
}

// ParseModules reads a .gitmodules, which is not trusted: what git would refuse is left out, and why is told. So is what
// git would not check out, without a word.
func ParseModules(text []byte) (modules []Submodule, refused []string, err error) {
	c := config.New()
	if err := config.NewDecoder(bytes.NewReader(text)).Decode(c); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", ModulesFile, err)
	}
	seen := map[string]bool{}
	for _, s := range c.Section("submodule").Subsections {
		m := Submodule{Name: s.Name, Path: s.Option("path"), URL: s.Option("url")}
		if s.Option("update") == "none" {
			continue
		}
		if err := m.check(); err != nil {
			refused = append(refused, fmt.Sprintf("submodule %.100q: %v", m.Name, err))
			continue
		}
		if !seen[m.Path] {
			seen[m.Path] = true
			modules = append(modules, m)
		}
	}
	slices.SortFunc(modules, func(a, b Submodule) int { return strings.Compare(a.Path, b.Path) })
	return modules, refused, nil
}

// check refuses what git does, because it has been used for attacks (submodule-config.c, check_submodule_name and
// looks_like_command_line_option).
func (m Submodule) check() error {
	steps := strings.FieldsFunc(m.Name, func(r rune) bool { return r == '/' || r == '\\' })
	switch {
	case m.Name == "" || slices.Contains(steps, ".."):
		return errors.New("the name is not allowed")
	case m.Path == "" || m.Path[0] == '-' || !filepath.IsLocal(m.Path) || filepath.Clean(m.Path) != m.Path || m.Path == ".":
		return fmt.Errorf("the path %.100q is not allowed", m.Path)
	case m.URL == "" || m.URL[0] == '-' || strings.ContainsAny(m.URL, "\n\r\x00"):
		return errors.New("the URL is missing or not allowed")
	}
	return nil
}

// ResolveURL makes the URL of a submodule out of what .gitmodules says: one that begins with ./ or ../ is relative to the
// URL of the repository around it, as git has it (remote.c, relative_url).
func ResolveURL(remote, url string) (string, error) {
	if !strings.HasPrefix(url, "./") && !strings.HasPrefix(url, "../") {
		return url, nil
	}
	base, separator := strings.TrimSuffix(remote, "/"), "/"
	for {
		if rest, ok := strings.CutPrefix(url, "../"); ok {
			url = rest
			slash, colon := strings.LastIndexByte(base, '/'), strings.LastIndexByte(base, ':')
			switch {
			case slash >= 0:
				base = base[:slash]
			case colon >= 0: // of host:path, only the host is left
				base, separator = base[:colon], ":"
			case base == ".":
				return "", fmt.Errorf("resolve URL: %s leads out of %s", url, remote)
			default:
				base = "."
			}
		} else if rest, ok := strings.CutPrefix(url, "./"); ok {
			url = rest
		} else {
			return base + separator + strings.TrimSuffix(url, "/"), nil
		}
	}
}

// AddSubmodules makes the configuration say that submodules are there, as `git submodule init` does. What it says already
// stays. Their URLs are whole ones.
func (d *Dir) AddSubmodules(modules []Submodule) error {
	name := filepath.Join(d.path, "config")
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("add submodules: %w", err)
	}
	c := config.New()
	if err := config.NewDecoder(bytes.NewReader(text)).Decode(c); err != nil {
		return fmt.Errorf("add submodules: read %s: %w", name, err)
	}
	added := false
	for _, m := range modules {
		if c.Section("submodule").Subsection(m.Name).HasOption("url") {
			continue
		}
		added = true
		c.SetOption("submodule", m.Name, "active", "true").SetOption("submodule", m.Name, "url", m.URL)
	}
	if !added {
		return nil
	}
	var b bytes.Buffer
	if err := config.NewEncoder(&b).Encode(c); err != nil {
		return fmt.Errorf("add submodules: %w", err)
	}
	return disk.WriteFile(name, b.Bytes(), 0o644)
}
