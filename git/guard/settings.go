package guard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/lazy"
)

// allowed maps the settings of the git directory that apply in the guarded directory to patterns of their values. No
// setting whose value is a command or a path is allowed: a path would lead to a file of the host, whereas the container
// means a file of its own.
var allowed = map[string]func() *regexp.Regexp{
	"extensions.objectformat":     lazy.Regexp(`^(sha1|sha256)$`),
	"extensions.refstorage":       lazy.Regexp(`^(files|reftable)$`),
	"core.autocrlf":               word,
	"core.checkroundtripencoding": word,
	"core.eol":                    word,
	"core.filemode":               word,
	"core.ignorecase":             word,
	"core.logallrefupdates":       word,
	"core.precomposeunicode":      word,
	"core.safecrlf":               word,
	"core.sparsecheckout":         word,
	"core.sparsecheckoutcone":     word,
	"core.symlinks":               word,
	"status.showuntrackedfiles":   word,
	"user.name":                   name,
	"user.email":                  name,
}

// tracking matches the keys of the settings on which names such as @{upstream} depend. Without a remote's URL they lead
// nowhere.
var tracking = lazy.Regexp(`(?s)^(branch|remote)\..*\.(remote|merge|fetch)$`)

var (
	word = lazy.Regexp(`^[A-Za-z0-9_., -]{0,100}$`)
	name = lazy.Regexp(`^[^\x00-\x1f\x7f]{0,200}$`)
)

// configure writes the configuration of the directory dir, which guards the git directory at path. It starts git only
// if the configuration of the git directory has changed.
func configure(ctx context.Context, path, dir string) error {
	text, err := readPlain(filepath.Join(path, "config"), maxConfig)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	config := filepath.Join(dir, "config")
	first := fmt.Appendf(nil, "# made from the configuration %x\n", sha256.Sum256(text))
	if now, err := os.ReadFile(config); err == nil && bytes.HasPrefix(now, first) {
		return nil
	}
	copied, remove, err := disk.TempFile(dir, "config")
	if err != nil {
		return err
	}
	defer remove()
	if _, err := copied.Write(text); err != nil {
		return err
	}
	// git parses a file without running programs, and without the files that it includes.
	cmd := gitcmd.Isolated(ctx, "config", "--file", copied.Name(), "--no-includes", "--null", "--list")
	out, err := gitcmd.Output(cmd)
	if err != nil {
		return err
	}
	return disk.WriteFileUnsynced(config, append(first, guarded(out)...), 0o600)
}

// guarded returns the text of a configuration with those settings in list, the output of git config --null --list, that
// are allowed.
func guarded(list []byte) []byte {
	var b bytes.Buffer
	b.WriteString("[core]\n\trepositoryformatversion = 1\n\tbare = true\n")
	for entry := range strings.SplitSeq(string(list), "\x00") {
		key, value, hasValue := strings.Cut(entry, "\n")
		if !hasValue {
			value = "true"
		}
		section, rest, _ := strings.Cut(key, ".")
		at := strings.LastIndexByte(rest, '.')
		if at >= 0 && tracking().MatchString(key) && name().MatchString(rest[:at]) && name().MatchString(value) {
			fmt.Fprintf(&b, "[%s \"%s\"]\n\t%s = \"%s\"\n", section, quote.Replace(rest[:at]), rest[at+1:], quote.Replace(value))
		} else if form := allowed[key]; form != nil && form().MatchString(value) {
			fmt.Fprintf(&b, "[%s]\n\t%s = \"%s\"\n", section, rest, quote.Replace(value))
		}
	}
	return b.Bytes()
}

// quote escapes a value, or the name of a subsection, for a configuration file.
var quote = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
