package gitdir

import (
	"context"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/convert"
	"github.com/artifactfs/artifactfs/internal/gitcmd"
)

// Checkout holds the settings that decide, together with the tree, about the contents of checked-out files. Its
// fields are unparsed, so that they can be stored.
type Checkout struct {
	Config  []byte `json:"config"`  // output of git config -z
	Machine []byte `json:"machine"` // system-wide gitattributes
	User    []byte `json:"user"`    // the user's gitattributes
	Own     []byte `json:"own"`     // info/attributes of the git directory
}

// ReadCheckout reads the configuration and attributes of the user and the system, and the attributes of the git
// directory gitDir if it exists. A file that is missing is empty, as are all settings without git. Relative paths in
// the configuration are not supported.
func ReadCheckout(ctx context.Context, gitDir string) (c Checkout) {
	// Outside of any repository git reads only the configuration of the user and the system.
	cmd := gitcmd.New(ctx, "config", "-z", "--get-regexp", `^(core\.(autocrlf|eol|ignorecase|attributesfile)|filter\..*)$`)
	if out, err := cmd.Output(); err == nil {
		c.Config = out
	}
	_, attributes := parseSettings(string(c.Config))
	if attributes == "" {
		attributes = filepath.Join(configHome(), "git", "attributes")
	}
	read := func(path string) []byte {
		content, err := os.ReadFile(expandUser(path))
		if err != nil {
			return nil // git, too, ignores a file that it cannot read
		}
		return content
	}
	if !isTrue(os.Getenv("GIT_ATTR_NOSYSTEM")) {
		c.Machine = read(machineAttributes())
	}
	c.User, c.Own = read(attributes), read(filepath.Join(gitDir, "info", "attributes"))
	return c
}

// Size returns the number of bytes that were read.
func (c Checkout) Size() int { return len(c.Config) + len(c.Machine) + len(c.User) + len(c.Own) }

// Settings returns the parsed settings.
func (c Checkout) Settings() convert.Settings {
	s, _ := parseSettings(string(c.Config))
	s.Outside = convert.NewOutside(c.Machine, c.User, c.Own, s.IgnoreCase)
	return s
}

// parseSettings parses the output of git config -z --get-regexp: keys, each followed by a line feed and the value
// unless it has no value. attributes is the value of core.attributesFile.
func parseSettings(out string) (s convert.Settings, attributes string) {
	drivers, silenced := map[string]convert.Driver{}, map[string]bool{}
	for entry := range strings.SplitSeq(out, "\x00") {
		key, value, hasValue := strings.Cut(entry, "\n")
		switch key {
		case "core.autocrlf":
			s.AutoCRLF = strings.ToLower(value)
			if !hasValue {
				s.AutoCRLF = "true"
			}
		case "core.eol":
			s.EOL = strings.ToLower(value)
		case "core.ignorecase":
			s.IgnoreCase = !hasValue || isTrue(value)
		case "core.attributesfile":
			attributes = value
		}
		name, ok := strings.CutPrefix(key, "filter.")
		end := strings.LastIndexByte(name, '.')
		if !ok || end < 0 {
			continue
		}
		d := drivers[name[:end]]
		d.Name = name[:end]
		switch name[end+1:] {
		case "smudge":
			d.Smudge, d.Clean = value, d.Clean || value == "" // git runs no command, but does not stream the file either
		case "process":
			d.Process, silenced[d.Name] = value, value == ""
		case "clean":
			d.Clean = true
		case "required":
			d.Required = !hasValue || isTrue(value)
		}
		drivers[d.Name] = d
	}
	for name := range silenced {
		if d := drivers[name]; silenced[name] { // an empty filter.NAME.process overrides smudge and clean, and converts nothing
			d.Smudge, d.Clean = "", true
			drivers[name] = d
		}
	}
	s.Drivers = drivers
	return s, attributes
}

// isTrue parses a boolean as git does.
func isTrue(value string) bool {
	switch strings.ToLower(value) {
	case "true", "yes", "on":
		return true
	}
	n, err := strconv.Atoi(value)
	return err == nil && n != 0
}

// configHome returns the directory of the user's configuration (XDG Base Directory Specification).
func configHome() string {
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return dir
	}
	return "~/.config"
}

// machineAttributes returns the path of the system-wide gitattributes: below the prefix of the installed git, or /etc
// if that is /usr.
func machineAttributes() string {
	prefix := gitPrefix()
	if prefix == "/usr" {
		prefix = "/"
	}
	return filepath.Join(prefix, "etc", "gitattributes")
}

// gitPrefix returns the installation prefix of git.
func gitPrefix() string {
	path, err := gitcmd.LookPath()
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "/usr"
	}
	return filepath.Dir(filepath.Dir(path))
}

// expandUser expands ~, ~USER and %(prefix) in a path, as git does in its configuration.
func expandUser(path string) string {
	if rest, ok := strings.CutPrefix(path, "%(prefix)/"); ok {
		return filepath.Join(gitPrefix(), rest)
	}
	if !strings.HasPrefix(path, "~") {
		return path
	}
	name, rest, _ := strings.Cut(path[1:], "/")
	home := os.Getenv("HOME")
	if name != "" {
		u, err := user.Lookup(name)
		if err != nil {
			return path
		}
		home = u.HomeDir
	}
	return filepath.Join(home, rest)
}
