// A schema registry in memory, franz-go's srfake: prints its address, and ends with its standard input.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/twmb/franz-go/pkg/sr/srfake"
)

func main() {
	registry := srfake.New()
	defer registry.Close()
	fmt.Println(registry.URL())
	io.Copy(io.Discard, os.Stdin)
}
