package disk

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// BootUUID returns the boot ID of the host as 16 bytes, the form in which headers of files store it. on is the file
// system through which the ID is read. The host gets a new boot ID each time it starts.
func BootUUID(on FS) (id [16]byte, err error) {
	text, err := on.BootID()
	if err != nil {
		return id, err
	}
	b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil || len(b) != len(id) {
		return id, fmt.Errorf("read boot ID: %q is not a UUID", text)
	}
	return [16]byte(b), nil
}
