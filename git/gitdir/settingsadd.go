package gitdir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Setting is one setting of git: its name as git config --list prints it, and its value.
type Setting struct{ Name, Value string }

// ignoreKeys are the keys of the section "core" that decide which files git ignores, besides the files with rules.
var ignoreKeys = []string{"excludesFile", "ignoreCase"}

// IgnoreSettings returns the settings of the git directory at path that decide which files git ignores. A checkpoint
// does not contain them, because the paths in them are those of one machine.
func IgnoreSettings(path string) (list []Setting, err error) {
	text, err := disk.ReadRegular(filepath.Join(path, "config"), disk.SmallFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	c := config.New()
	if err == nil {
		err = config.NewDecoder(bytes.NewReader(text)).Decode(c)
	}
	if err != nil {
		return nil, fmt.Errorf("read the settings of %s: %w", path, err)
	}
	for _, key := range ignoreKeys {
		if c.Section("core").HasOption(key) {
			list = append(list, Setting{"core." + key, c.Section("core").Option(key)})
		}
	}
	return list, nil
}

// addSettings adds settings to c, as repeated calls of git config --add do, after it has removed the settings of these
// names.
func addSettings(c *config.Config, settings []Setting) error {
	for _, s := range settings {
		section, subsection, key, err := s.parts()
		if err != nil {
			return err
		}
		if subsection == config.NoSubsection {
			c.Section(section).RemoveOption(key)
		} else {
			c.Section(section).Subsection(subsection).RemoveOption(key)
		}
	}
	for _, s := range settings {
		section, subsection, key, _ := s.parts()
		c.AddOption(section, subsection, key, s.Value)
	}
	return nil
}

// parts returns the parts of the name of a setting. The subsection is config.NoSubsection if there is none.
func (s Setting) parts() (section, subsection, key string, err error) {
	section, key, ok := strings.Cut(s.Name, ".")
	if !ok {
		return "", "", "", fmt.Errorf("invalid name of a setting: %q", s.Name)
	}
	if i := strings.LastIndex(key, "."); i >= 0 {
		subsection, key = key[:i], key[i+1:]
	}
	return section, subsection, key, nil
}
