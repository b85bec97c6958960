class Extension:
    pass


loopcontrols = Extension
