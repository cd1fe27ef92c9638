package fuse

import (
	"errors"
	"os"
	"reflect"
	"sync"
	"unsafe"

	raw "github.com/hanwen/go-fuse/v2/fuse"
)

// residentBuffers has a server of the library read requests into memory that is there.
//
// The kernel takes a request from its queue and then copies it to whoever reads. If that needs a page that is not there,
// and the process has been killed meanwhile, it cannot be had (mm/gup.c, fatal_signal_pending): the request is lost, and
// who made it gets EIO (fs/fuse/dev.c, fuse_dev_do_read), which no successor can mend. New memory of Go's has no pages
// before it is written to, and the library, which lets the collector have its buffers, needs new ones all the time.
func residentBuffers(s *raw.Server) error {
	field := reflect.ValueOf(s).Elem().FieldByName("readPool")
	if !field.IsValid() || field.Type() != reflect.TypeFor[sync.Pool]() {
		return errors.New("the library's buffers are not where they were")
	}
	pool := (*sync.Pool)(unsafe.Pointer(field.UnsafeAddr()))
	fresh := pool.New
	*pool = sync.Pool{New: func() any { // without the buffer that INIT was read into
		buffer := fresh()
		b := buffer.([]byte)
		for i := 0; i < len(b); i += os.Getpagesize() {
			b[i] = 0
		}
		b[len(b)-1] = 0
		return buffer
	}}
	return nil
}
