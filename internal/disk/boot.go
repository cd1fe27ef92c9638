package disk

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// BootUUID returns the boot ID of the host in the binary form that the headers of files contain. The parameter on is the file
// system through which BootUUID reads the ID. The host gets a new boot ID at each start.
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
