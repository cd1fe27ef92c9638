package gitdir

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// ModulesFile is the file in the root of a tree that lists the URLs of its submodules (gitmodules(5)).
const ModulesFile = ".gitmodules"

// Submodule is one submodule in .gitmodules.
type Submodule struct {
	Name string // name of the submodule's section in the file
	Path string // path of the submodule in the working tree
	URL  string // URL as written in the file, which may be relative; see ResolveURL
}

// ParseModules parses the contents of a .gitmodules file, which are not trusted. It returns the submodules, sorted by
// path. It leaves out submodules that git would refuse, and adds a text with the name and the reason for each of them
// to the result refused. It also leaves out submodules that git would not check out (update = none).
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
		// Only one submodule can be at a path, so ignore later submodules at the same path.
		if !seen[m.Path] {
			seen[m.Path] = true
			modules = append(modules, m)
		}
	}
	slices.SortFunc(modules, func(a, b Submodule) int { return strings.Compare(a.Path, b.Path) })
	return modules, refused, nil
}

// check returns an error for a submodule that git refuses because it could be used in an attack (check_submodule_name
// and looks_like_command_line_option in submodule-config.c).
func (m Submodule) check() error {
	steps := strings.FieldsFunc(m.Name, func(r rune) bool { return r == '/' || r == '\\' })
	switch {
	case m.Name == "" || slices.Contains(steps, ".."):
		return errors.New("submodule name is empty or contains \"..\"")
	case m.Path == "" || m.Path[0] == '-' || !filepath.IsLocal(m.Path) || filepath.Clean(m.Path) != m.Path ||
		m.Path == ".":
		return fmt.Errorf("submodule path %.100q is not a relative path in its shortest form", m.Path)
	case m.URL == "" || m.URL[0] == '-' || strings.ContainsAny(m.URL, "\n\r\x00"):
		return errors.New("submodule URL is missing, begins with \"-\" or contains a line break")
	}
	return nil
}

// ResolveURL returns the absolute URL of a submodule. If url begins with ./ or ../, it is relative to remote, the URL
// of the repository that contains the submodule (relative_url in git's remote.c).
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
			case colon >= 0: // The remote has the form host:path; keep only the host.
				base, separator = base[:colon], ":"
			case base == ".":
				return "", fmt.Errorf("resolve submodule URL: %s leads above the root of %s", url, remote)
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

// AddSubmodules activates submodules in the configuration, as `git submodule init` does. Submodules that already have a
// URL in the configuration are not changed. The URLs in modules must be absolute.
func (d *Dir) AddSubmodules(modules []Submodule) error {
	name := filepath.Join(d.path, "config")
	text, err := disk.ReadRegular(name, disk.SmallFile)
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
