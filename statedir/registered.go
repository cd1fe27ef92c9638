package statedir

import (
	"strings"

	"github.com/artifactfs/artifactfs/control"
)

// RegistryVersion is the version of the files of the registry.
const RegistryVersion = 1

// Registered is a file of the registry: a mount that is restored after a restart. A new field does not change the
// version.
type Registered struct {
	Version int                  `json:"version"`
	Request control.MountRequest `json:"request"` // its URL is without secrets
	Record  Record               `json:"record"`  // record of the mount, which has its base
}

// QuoteGlob returns a pattern for filepath.Glob that matches path alone.
func QuoteGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
