package dockervolume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/volume"
)

// record is what the driver remembers of a volume, in a file of its own. It contains no secret.
type record struct {
	Name    string            `json:"name"`
	Options map[string]string `json:"options"` // as Docker has passed them; see volume.Help
	Created time.Time         `json:"created"`
	// Uses are the ids of the containers' uses, as Docker has passed them to Mount. They hold for the boot of the host in which they
	// were added: no container survives a boot.
	Uses []string `json:"uses,omitempty"`
	Boot string   `json:"boot,omitempty"`
}

// volume returns what the options describe. The session of a writable volume has the name of the volume, unless the options name one.
func (r *record) volume(host string) (volume.Volume, error) {
	options := maps.Clone(r.Options)
	if options == nil {
		options = map[string]string{}
	}
	// A mount that is bound into .git after the start of a container is invisible in the container, so git has to be ready.
	if options["wait"] == "" {
		options["wait"] = "git"
	}
	v, err := volume.Parse(options, nil, volume.Names{"volume": r.Name, "node": host})
	if err == nil && v.Request.Session == "" && !v.Request.ReadOnly {
		v.Request.Session = r.Name
		if len(v.Request.Session) > maxSession {
			v.Request.Session = v.Request.Session[:maxSession]
		}
	}
	return v, err
}

// maxSession is the maximum length of the name of a session in bytes.
const maxSession = 128

// records is the directory with the records.
type records struct{ dir string }

// validName returns an error for a name that cannot be the name of a volume of Docker, which is also the name of a file here.
func validName(name string) error {
	bad := func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("_.-", c))
	}
	if name == "" || len(name) > 200 || strings.ContainsFunc(name, bad) || strings.ContainsRune("_.-", rune(name[0])) {
		return fmt.Errorf("invalid name %.60q of a volume", name)
	}
	return nil
}

func (r records) path(name string) string { return filepath.Join(r.dir, name+".json") }

// load returns the record of a volume, and false if there is none. Uses of an earlier boot are left out.
func (r records) load(name string) (record, bool, error) {
	if err := validName(name); err != nil {
		return record{}, false, err
	}
	text, err := os.ReadFile(r.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, false, nil
	}
	var rec record
	if err == nil {
		err = json.Unmarshal(text, &rec)
	}
	if err != nil {
		return record{}, false, fmt.Errorf("read record of volume %s: %w", name, err)
	}
	if boot, err := proc.BootID(); err == nil && boot != rec.Boot {
		rec.Uses = nil
	}
	return rec, true, nil
}

// save writes the record of a volume.
func (r records) save(rec record) error {
	boot, err := proc.BootID()
	if err != nil {
		return fmt.Errorf("write record of volume %s: %w", rec.Name, err)
	}
	rec.Boot = boot
	text, err := json.Marshal(rec)
	if err == nil {
		err = disk.WriteFile(r.path(rec.Name), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write record of volume %s: %w", rec.Name, err)
	}
	return nil
}

// remove removes the record of a volume, if there is one.
func (r records) remove(name string) error {
	if err := os.Remove(r.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record of volume %s: %w", name, err)
	}
	return nil
}

// list returns all records, sorted by name.
func (r records) list() ([]record, error) {
	files, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	var all []record
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok || validName(name) != nil {
			continue
		}
		rec, ok, err := r.load(name)
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, rec)
		}
	}
	slices.SortFunc(all, func(a, b record) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}
